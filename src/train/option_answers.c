/* SPDX-License-Identifier: MIT
 *
 * What is answered instead of accepted: names that people bring from Transformers, TRL, Axolotl, LLaMA-Factory, DeepSpeed,
 * Accelerate, Megatron and llama.cpp, with what to type here; and the options of parts that are not there yet.
 */
#include "train/train_options.h"

#include <stddef.h>

#define DTYPE_ANSWER     "type --dtype bfloat16 (the default) or --dtype float32"
#define MODEL_ANSWER     "type --model DIR, the folder with config.json and the safetensors files"
#define TOKENIZER_ANSWER "leave it out: the tokenizer is tokenizer.json of the --model folder"
#define DATA_ANSWER      "type --data FILE..., .txt or .jsonl"
#define EVAL_DATA_ANSWER "type --eval-data FILE..., or --validation-split F"
#define LENGTH_ANSWER    "type --max-length N, the most tokens of a row"
#define CONFIG_ANSWER    "type --config-overrides JSON, an object of config.json values"
#define SP_ANSWER        "type --sp-size N, the ranks that share each sequence"
#define ULYSSES_ANSWER   "type --ulysses-size N (and --method usp for the product with a ring)"
#define RING_ANSWER      "type --ring-size N (with --method ring, or usp beside --ulysses-size)"
#define STAGE_ANSWER     "type --heads-per-stage N, the query heads of a rank in one stage"
#define METHOD_ANSWER    "type --method ulysses, upipe, ring, usp or auto"
#define NO_TP_ANSWER                                                                               \
    "weights are not split over ranks; --sp-size N splits the sequence, --dp-size N the rows"
#define ZERO_ANSWER                                                                                \
    "leave it out: ranks need no other framework; --sp-size and --dp-size lay them out"
#define LORA_ANSWER                                                                                \
    "leave it out: all weights are trained; adapters and quantised weights are not offered"
#define OPTIM_ANSWER   "leave it out: the optimizer is AdamW, with float32 master weights"
#define METRICS_ANSWER "leave it out: the numbers of the steps are in metrics.jsonl of --output-dir"
#define HUB_ANSWER     "leave it out, and upload the --output-dir with the hub's own tool afterwards"
#define ROWS_ANSWER                                                                                \
    "type --per-device-train-batch-size N (rows of a micro-batch) or --global-batch-size N (rows " \
    "of a step)"
#define EVAL_STEPS_ANSWER "type --eval-steps N, with --eval-data or --validation-split"
#define SAVE_ANSWER                                                                                \
    "the model is written at the end of the run, and of the last finished step when it is stopped"
#define LEAVE_OUT    "leave it out: "
#define NPROC_ANSWER "type --nproc N for ranks on this machine, or start it with mpirun or srun"

const struct uly_option_answer uly_foreign_options[] = {
    /* model and tokenizer */
    {"model-name-or-path", NULL, MODEL_ANSWER},
    {"model-name", NULL, MODEL_ANSWER},
    {"model-path", NULL, MODEL_ANSWER},
    {"model-id", NULL, MODEL_ANSWER},
    {"base-model", NULL, MODEL_ANSWER},
    {"pretrained-model-name-or-path", NULL, MODEL_ANSWER},
    {"tokenizer", NULL, TOKENIZER_ANSWER},
    {"tokenizer-name", NULL, TOKENIZER_ANSWER},
    {"tokenizer-name-or-path", NULL, TOKENIZER_ANSWER},
    {"config-name", NULL, "leave it out: config.json of the --model folder is read"},
    {"trust-remote-code", NULL, LEAVE_OUT "no code of a model folder is ever run"},
    {"cache-dir", NULL, LEAVE_OUT "nothing is downloaded"},
    {"attn-implementation", NULL, LEAVE_OUT "the attention kernels are built in"},
    {"use-flash-attn", NULL, LEAVE_OUT "the attention kernels are built in"},
    {"flash-attention", NULL, LEAVE_OUT "the attention kernels are built in"},
    {"flash-attn", NULL, LEAVE_OUT "the attention kernels are built in"},
    /* data */
    {"train-file", NULL, DATA_ANSWER},
    {"train-files", NULL, DATA_ANSWER},
    {"train-data", NULL, DATA_ANSWER},
    {"data-path", NULL, DATA_ANSWER},
    {"dataset", NULL, DATA_ANSWER},
    {"datasets", NULL, DATA_ANSWER},
    {"dataset-name", NULL, DATA_ANSWER},
    {"dataset-path", NULL, DATA_ANSWER},
    {"dataset-text-field", NULL, "leave it out, and name the key \"text\" in the .jsonl file"},
    {"validation-file", NULL, EVAL_DATA_ANSWER},
    {"validation-data", NULL, EVAL_DATA_ANSWER},
    {"eval-file", NULL, EVAL_DATA_ANSWER},
    {"val-data", NULL, EVAL_DATA_ANSWER},
    {"validation-split-percentage", NULL, "type --validation-split F, a fraction such as 0.05"},
    {"val-size", NULL, "type --validation-split F, a fraction such as 0.05"},
    {"max-seq-length", NULL, LENGTH_ANSWER},
    {"max-seq-len", NULL, LENGTH_ANSWER},
    {"seq-length", NULL, LENGTH_ANSWER},
    {"seq-len", NULL, LENGTH_ANSWER},
    {"sequence-len", NULL, LENGTH_ANSWER},
    {"sequence-length", NULL, LENGTH_ANSWER},
    {"cutoff-len", NULL, LENGTH_ANSWER},
    {"block-size", NULL, LENGTH_ANSWER},
    {"model-max-length", NULL, LENGTH_ANSWER},
    {"context-length", NULL, LENGTH_ANSWER},
    {"max-position-embeddings", NULL, LENGTH_ANSWER},
    {"rope-theta", NULL, CONFIG_ANSWER},
    {"rope-scaling", NULL, CONFIG_ANSWER},
    {"rope-freq-base", NULL, CONFIG_ANSWER},
    {"sliding-window", NULL, CONFIG_ANSWER},
    {"group-by-length", NULL, "type --train-sampling-strategy random or sequential"},
    {"dataloader-drop-last", NULL, LEAVE_OUT "no row is dropped; an epoch's last step is short"},
    {"dataloader-num-workers", NULL, LEAVE_OUT "rows are tokenised before the first step"},
    {"num-workers", NULL, LEAVE_OUT "rows are tokenised before the first step"},
    {"preprocessing-num-workers", NULL, LEAVE_OUT "rows are tokenised before the first step"},
    {"remove-unused-columns", NULL, LEAVE_OUT "keys that are not used are ignored and listed"},
    {"data-seed", NULL, "type --seed N, which decides the order of the rows"},
    {"label-smoothing-factor", NULL, LEAVE_OUT "labels are not smoothed"},
    {"neftune-noise-alpha", NULL, LEAVE_OUT "no noise is added to embeddings"},
    /* layout */
    {"cp-size", NULL, SP_ANSWER},
    {"cp", NULL, SP_ANSWER},
    {"context-parallel-size", NULL, SP_ANSWER},
    {"context-parallel-degree", NULL, SP_ANSWER},
    {"parallelism-config-cp-size", NULL, SP_ANSWER},
    {"parallelism-config-sp-size", NULL, SP_ANSWER},
    {"sequence-parallel-size", NULL, SP_ANSWER},
    {"sequence-parallel-degree", NULL, SP_ANSWER},
    {"ulysses-sequence-parallel-size", NULL, SP_ANSWER},
    {"ulysses-degree", NULL, ULYSSES_ANSWER},
    {"ulysses-sp-size", NULL, ULYSSES_ANSWER},
    {"sp-ulysses-degree", NULL, ULYSSES_ANSWER},
    {"sequence-parallel", NULL,
     "Megatron's splits the norms of tensor parallelism; here --sp-size N splits the sequence"},
    {"ring-degree", NULL, RING_ANSWER},
    {"sp-ring-degree", NULL, RING_ANSWER},
    {"ring-attn-size", NULL, RING_ANSWER},
    {"ring-head-stride", NULL, STAGE_ANSWER},
    {"heads-k-stride", NULL, STAGE_ANSWER},
    {"hierarchical-context-parallel-sizes", NULL,
     "type --method usp --ulysses-size N --ring-size M"},
    {"cp-comm-type", NULL, METHOD_ANSWER},
    {"sequence-parallel-mode", NULL, METHOD_ANSWER},
    {"method", "zigzag-ring", "type --method ring, which is balanced by zigzag"},
    {"method", "deepspeed-ulysses", "type --method ulysses"},
    {"tp-size", NULL, NO_TP_ANSWER},
    {"tensor-parallel-size", NULL, NO_TP_ANSWER},
    {"tensor-model-parallel-size", NULL, NO_TP_ANSWER},
    {"pp-size", NULL, NO_TP_ANSWER},
    {"pipeline-parallel-size", NULL, NO_TP_ANSWER},
    {"pipeline-model-parallel-size", NULL, NO_TP_ANSWER},
    {"ep-size", NULL, NO_TP_ANSWER},
    {"expert-parallel-size", NULL, NO_TP_ANSWER},
    {"data-parallel-size", NULL, "type --dp-size N"},
    {"deepspeed", NULL, ZERO_ANSWER},
    {"deepspeed-config", NULL, ZERO_ANSWER},
    {"fsdp", NULL, ZERO_ANSWER},
    {"fsdp-config", NULL, ZERO_ANSWER},
    {"accelerator-config", NULL, ZERO_ANSWER},
    {"ddp-backend", NULL, ZERO_ANSWER},
    {"ddp-find-unused-parameters", NULL, ZERO_ANSWER},
    {"local-rank", NULL, NPROC_ANSWER},
    {"nproc-per-node", NULL, NPROC_ANSWER},
    {"num-processes", NULL, NPROC_ANSWER},
    {"num-gpus", NULL, NPROC_ANSWER},
    {"num-threads", NULL, "type --threads N"},
    {"ddp-timeout", NULL, "type --collective-timeout SECONDS"},
    {"use-cpu", NULL, LEAVE_OUT "it runs on CPUs"},
    {"no-cuda", NULL, LEAVE_OUT "it runs on CPUs"},
    {"device", NULL, LEAVE_OUT "it runs on CPUs"},
    /* numbers */
    {"bf16", NULL, DTYPE_ANSWER},
    {"fp32", NULL, "type --dtype float32"},
    {"tf32", NULL, "type --dtype float32"},
    {"fp16", NULL, "float16 is not offered; " DTYPE_ANSWER},
    {"bf16-full-eval", NULL, DTYPE_ANSWER},
    {"fp16-full-eval", NULL, DTYPE_ANSWER},
    {"mixed-precision", NULL, DTYPE_ANSWER},
    {"precision", NULL, DTYPE_ANSWER},
    {"torch-dtype", NULL, DTYPE_ANSWER},
    {"dtype", "bf16", DTYPE_ANSWER},
    {"dtype", "fp32", "type --dtype float32"},
    {"dtype", "fp16", "float16 is not offered; " DTYPE_ANSWER},
    {"dtype", "float16", "float16 is not offered; " DTYPE_ANSWER},
    {"dtype", "auto", DTYPE_ANSWER},
    {"use-peft", NULL, LORA_ANSWER},
    {"lora-r", NULL, LORA_ANSWER},
    {"lora-rank", NULL, LORA_ANSWER},
    {"lora-alpha", NULL, LORA_ANSWER},
    {"lora-dropout", NULL, LORA_ANSWER},
    {"lora-target-modules", NULL, LORA_ANSWER},
    {"load-in-4bit", NULL, LORA_ANSWER},
    {"load-in-8bit", NULL, LORA_ANSWER},
    {"torch-compile", NULL, LEAVE_OUT "the program is compiled"},
    {"use-liger-kernel", NULL, LEAVE_OUT "norm, MLP and loss go by token tiles already"},
    {"full-determinism", NULL, LEAVE_OUT "the same layout and seed give the same bits"},
    {"gradient-checkpointing-kwargs", NULL, "type --gradient-checkpointing none or full"},
    {"activation-checkpointing", NULL, "type --gradient-checkpointing full"},
    {"recompute", NULL, "type --gradient-checkpointing full"},
    /* batch */
    {"batch-size", NULL, ROWS_ANSWER},
    {"micro-batch-size", NULL, ROWS_ANSWER},
    {"train-batch-size", NULL, ROWS_ANSWER},
    {"train-micro-batch-size-per-gpu", NULL, ROWS_ANSWER},
    {"auto-find-batch-size", NULL, ROWS_ANSWER},
    {"per-device-eval-batch-size", NULL,
     "evaluation takes the rows of --per-device-train-batch-size"},
    {"eval-batch-size", NULL, "evaluation takes the rows of --per-device-train-batch-size"},
    {"gradient-accumulation", NULL, "type --gradient-accumulation-steps N"},
    {"average-tokens-across-devices", NULL, LEAVE_OUT "the loss is the mean over all tokens"},
    /* optimizer */
    {"optim", NULL, OPTIM_ANSWER},
    {"optimizer", NULL, OPTIM_ANSWER},
    {"optim-args", NULL, OPTIM_ANSWER},
    {"lr", NULL, "type --learning-rate X"},
    {"lr-scheduler", NULL, "type --lr-scheduler-type NAME"},
    {"lr-scheduler-kwargs", NULL, "type --min-lr, --min-lr-rate or --num-decay-steps"},
    {"warmup-ratio", NULL, "type --warmup-steps F; a value below 1 is a ratio"},
    {"beta1", NULL, "type --adam-beta1 X"},
    {"beta2", NULL, "type --adam-beta2 X"},
    {"clip-grad", NULL, "type --max-grad-norm X"},
    {"gradient-clipping", NULL, "type --max-grad-norm X"},
    {"epochs", NULL, "type --num-train-epochs N"},
    {"num-epochs", NULL, "type --num-train-epochs N"},
    {"train-iters", NULL, "type --max-steps N"},
    /* watching and saving */
    {"do-train", NULL, LEAVE_OUT "ulysses train trains"},
    {"do-eval", NULL, "type --eval-data FILE..., or run ulysses eval"},
    {"do-predict", NULL, "run ulysses eval"},
    {"eval-strategy", NULL, EVAL_STEPS_ANSWER},
    {"evaluation-strategy", NULL, EVAL_STEPS_ANSWER},
    {"eval-on-start", NULL, LEAVE_OUT "evaluation data is evaluated before the first step"},
    {"logging-strategy", NULL, "type --logging-steps N"},
    {"logging-first-step", NULL, LEAVE_OUT "the first step is logged"},
    {"logging-dir", NULL, METRICS_ANSWER},
    {"run-name", NULL, METRICS_ANSWER},
    {"report-to", NULL, METRICS_ANSWER},
    {"disable-tqdm", NULL, LEAVE_OUT "there are plain lines where there is no terminal"},
    {"include-num-input-tokens-seen", NULL, METRICS_ANSWER},
    {"push-to-hub", NULL, HUB_ANSWER},
    {"hub-model-id", NULL, HUB_ANSWER},
    {"hub-token", NULL, HUB_ANSWER},
    {"save-safetensors", NULL, LEAVE_OUT "weights are written as safetensors"},
    {"output", NULL, "type --output-dir DIR"},
    {"out-dir", NULL, "type --output-dir DIR"},
    {NULL, NULL, NULL},
};

const struct uly_option_answer uly_later_options[] = {
    {"zero-stage", "1", "--zero-stage 0 is"},
    {"zero-stage", "2", "--zero-stage 0 is"},
    {"zero-stage", "3", "--zero-stage 0 is"},
    {"gradient-checkpointing", "attention", "--gradient-checkpointing full or none is"},
    {"activation-offload", NULL, "--gradient-checkpointing full keeps one block input a layer"},
    {"offload-hidden-states", NULL, NULL},
    {"offload-optimizer", NULL, NULL},
    {"packing", NULL,
     "--per-device-train-batch-size N lays N rows end to end; attention does not cross them"},
    {"assistant-only-loss", NULL,
     "rows with \"input_ids\" and \"labels\" say which tokens count (-100: not this one)"},
    {"save-steps", NULL, SAVE_ANSWER},
    {"save-strategy", NULL, SAVE_ANSWER},
    {"save-total-limit", NULL, SAVE_ANSWER},
    {"save-only-model", NULL, SAVE_ANSWER},
    {"load-best-model-at-end", NULL, SAVE_ANSWER},
    {"metric-for-best-model", NULL, SAVE_ANSWER},
    {"greater-is-better", NULL, SAVE_ANSWER},
    {"resume-from-checkpoint", NULL,
     "--model OUT trains on from the weights of a finished run, with a fresh optimizer"},
    {"profile", NULL, NULL},
    {NULL, NULL, NULL},
};
