/* SPDX-License-Identifier: MIT
 *
 * ulysses COMMAND ...: trains Hugging Face language models on very long sequences split over MPI ranks.
 */
#include <string.h>

#include "cli/cli.h"

struct command {
    const char *name, *about;
    int (*run)(int argc, char **argv); /* NULL: a part that is not there yet */
};

static const struct command commands[] = {
    {"init", "make a model folder with random weights", uly_cmd_init},
    {"train", "train a model on texts or token rows", uly_cmd_train},
    {"eval", "loss and perplexity of a model on data", uly_cmd_eval},
    {"inspect", "say what a model folder holds", uly_cmd_inspect},
    {"selfcheck", "compare every layout of a model with one rank", uly_cmd_selfcheck},
    {"bench", "measure this machine: gemm, attention, alltoall, step", uly_cmd_bench},
    {"plan", "memory and time of a run that has not happened", NULL},
    {"tokenize", "show how a text becomes tokens", NULL},
    {"report", "a page about a finished run", NULL},
};

enum { COUNT_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *out)
{
    fprintf(out, "ulysses trains Hugging Face language models on very long sequences, split over "
                 "MPI ranks.\n\n");
    for (int i = 0; i < COUNT_COMMANDS; i++)
        if (commands[i].run)
            fprintf(out, "  ulysses %-9s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\nulysses COMMAND --help lists a command's options. The shortest start:\n\n"
                 "  ulysses init model --config config.json\n"
                 "  ulysses train --model model --data book.txt --output-dir trained --nproc 2\n");
}

static int unknown(const char *name)
{
    const char *names[COUNT_COMMANDS];
    for (int i = 0; i < COUNT_COMMANDS; i++)
        names[i] = commands[i].run ? commands[i].name : NULL;
    const char *near = uly_nearest_name(name, names, COUNT_COMMANDS);
    if (near)
        fprintf(stderr, "ulysses: there is no command %s; did you mean %s?\n", name, near);
    else
        fprintf(stderr, "ulysses: there is no command %s; ulysses --help lists the commands\n",
                name);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ulysses %s\n", ULY_VERSION);
        return 0;
    }
    for (int i = 0; i < COUNT_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        if (commands[i].run)
            return commands[i].run(argc, argv);
        fprintf(stderr, "ulysses: the command %s (%s) is not there yet\n", commands[i].name,
                commands[i].about);
        return 2;
    }
    return unknown(argv[1]);
}
