#!/bin/sh
# SPDX-License-Identifier: MIT
# mpirun.sh N PROGRAM [ARGS]: N ranks on this machine, more than its cores if need be, also as root (containers).
# Works with Open MPI and MPICH.
n=$1
shift
if mpirun --version 2>&1 | grep -qi 'open mpi\|open-mpi'; then
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        OMPI_MCA_mpi_yield_when_idle=1 exec mpirun -n "$n" --oversubscribe --bind-to none "$@"
fi
exec mpirun -n "$n" "$@"
