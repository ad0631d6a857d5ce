/* SPDX-License-Identifier: MIT
 *
 * The start block says what is in force, read back from the objects that will do the work; the end block says what came
 * out and what to type next.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "train/run_impl.h"
#include "train/text.h"

#define COUNT(n)   uly_text_count((n), &(struct uly_text){{0}})
#define BYTES(n)   uly_text_bytes((n), &(struct uly_text){{0}})
#define SECONDS(s) uly_text_seconds((s), &(struct uly_text){{0}})

enum { MAX_GRID_LINES = 16 };

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* ------------------------------------------------------------------ start */

static void say_model(struct uly_run *run)
{
    const struct uly_model_config *c = run->config;
    struct uly_progress *p = &run->progress;
    uly_progress_line(p,
                      "model     %s: %s, %d layer%s, hidden %" PRId64 ", %d heads of %d, %d kv "
                      "heads, vocabulary %s",
                      run->values->model, c->architecture, c->num_hidden_layers,
                      plural(c->num_hidden_layers), c->hidden_size, c->num_attention_heads,
                      c->head_dim, c->num_key_value_heads, COUNT(c->vocab_size));
    uly_progress_line(p, "          %s parameters, %s without embeddings%s",
                      COUNT(uly_params_count(&run->params, false)),
                      COUNT(uly_params_count(&run->params, true)),
                      c->tie_word_embeddings ? " (tied)" : "");
    if (run->values->config_overrides)
        uly_progress_line(p, "          config.json with %s", run->values->config_overrides);
}

/* One line a group of ranks that share a sequence: the ranks, and their machines where there are several. */
static void say_grid(struct uly_run *run)
{
    const int *hosts = uly_comm_hosts(run->world);
    int sp = (int)run->values->sp_size, dp = (int)run->values->dp_size;
    struct uly_progress *p = &run->progress;
    for (int replica = 0; replica < dp && replica < MAX_GRID_LINES; replica++) {
        char text[512];
        size_t used = 0;
        int first = replica * sp, last = first + sp - 1;
        for (int r = first; r <= last && used < sizeof text; r++) /* runs of ranks on one machine */
            if (r == first || hosts[r] != hosts[r - 1]) {
                int end = r;
                while (end < last && hosts[end + 1] == hosts[r])
                    end++;
                used += (size_t)snprintf(text + used, sizeof text - used, "%srank%s %d",
                                         used ? ", " : "", r == end ? "" : "s", r);
                if (end > r && used < sizeof text)
                    used += (size_t)snprintf(text + used, sizeof text - used, "-%d", end);
                if (used < sizeof text)
                    used += (size_t)snprintf(text + used, sizeof text - used, " on %s",
                                             uly_comm_host_name(run->world, r));
            }
        uly_progress_line(p, "          replica %d: %s", replica, text);
    }
    if (dp > MAX_GRID_LINES)
        uly_progress_line(p, "          and %d more replicas", dp - MAX_GRID_LINES);
}

/* The number of ranks of each machine in order, as "node1 4, node2 3". */
static void machine_ranks(const struct uly_run *run, char *text, size_t bytes)
{
    const int *hosts = uly_comm_hosts(run->world);
    size_t used = 0;
    text[0] = 0;
    for (int r = 0, next = 0; r < run->size && used < bytes; r++) {
        if (hosts[r] != next) /* machines are numbered in the order of their first ranks */
            continue;
        int n = 0;
        for (int i = r; i < run->size; i++)
            n += hosts[i] == next;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %d", used ? ", " : "",
                                 uly_comm_host_name(run->world, r), n);
        next++;
    }
}

/* The largest ulysses size below the one in force that would leave every group on one machine. */
static int64_t size_inside(const struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    for (int64_t size = v->ulysses_size - 1; size > 1; size--)
        if (v->sp_size % size == 0 &&
            uly_method_spanning_group(uly_comm_hosts(run->world), run->size, (int)size) < 0)
            return size;
    return 1;
}

static void warn_spanning(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    int size = (int)v->ulysses_size;
    int first = uly_method_spanning_group(uly_comm_hosts(run->world), run->size, size);
    if (first < 0)
        return;
    char machines[300];
    int64_t inside = size_inside(run);
    machine_ranks(run, machines, sizeof machines);
    uly_progress_line(&run->progress,
                      "warning   ulysses ranks %d-%d span machines, so their exchanges cross the "
                      "network (ranks a machine: %s); --method usp --ulysses-size %" PRId64
                      " --ring-size %" PRId64 " keeps each group on one",
                      first, first + size - 1, machines, inside, v->sp_size / inside);
}

static void say_layout(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    struct uly_progress *p = &run->progress;
    char tile[64] = "";
    if (v->query_tile > 0)
        snprintf(tile, sizeof tile, ", query-tile %" PRId64, v->query_tile);
    uly_progress_line(p,
                      "layout    %d rank%s: dp-size %" PRId64 " x sp-size %" PRId64
                      " (method %s, ulysses-size %" PRId64 ", ring-size %" PRId64
                      ", heads-per-stage %" PRId64 "%s)",
                      run->size, plural(run->size), v->dp_size, v->sp_size,
                      uly_method_name((enum uly_method)v->method), v->ulysses_size, v->ring_size,
                      v->heads_per_stage, tile);
    if (run->asked.method == ULY_METHOD_AUTO)
        uly_progress_line(p, "          auto: %s%s%s", run->choice.reason,
                          run->choice.reason[0] ? "; " : "", run->stage_reason);
    if (run->size > 1)
        say_grid(run);
    warn_spanning(run);
}

static void say_threads(struct uly_run *run)
{
    const struct uly_machine_threads *t = &run->threads;
    struct uly_progress *p = &run->progress;
    const int *hosts = uly_comm_hosts(run->world);
    int on_host = 0;
    for (int r = 0; r < run->size; r++)
        on_host += hosts[r] == 0;
    uly_progress_line(p, "threads   %d a rank on %d CPU%s%s; %s", t->threads, t->cpus,
                      plural(t->cpus), t->sharing > 1 ? " (shared by ranks)" : "",
                      uly_backend_name(run->be));
    if ((int64_t)t->cpus < (int64_t)t->threads * (t->sharing > 1 ? t->sharing : 1))
        uly_progress_line(p,
                          "warning   %d thread%s for %d CPU%s: they will wait for each other; "
                          "--threads or the launcher's binding sets this",
                          t->threads * t->sharing, plural(t->threads * t->sharing), t->cpus,
                          plural(t->cpus));
    if (on_host * t->threads * 2 < t->cpus_allowed)
        uly_progress_line(p,
                          "warning   %d of %d CPUs of %s will be idle: the launcher binds ranks "
                          "too tightly (mpirun --bind-to none), or --threads is low",
                          t->cpus_allowed - on_host * t->threads, t->cpus_allowed,
                          uly_comm_host_name(run->world, 0));
}

static void say_numbers(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    if (!run->training) {
        uly_progress_line(&run->progress, "numbers   %s", uly_dtype_name(run->dtype));
        return;
    }
    uly_progress_line(&run->progress,
                      "numbers   %s, gradient-checkpointing %s, zero-stage %" PRId64
                      ", saved as %s",
                      uly_dtype_name(run->dtype),
                      v->gradient_checkpointing == ULY_CHECKPOINT_FULL ? "full" : "none",
                      v->zero_stage, uly_dtype_name(uly_train_save_dtype(v, run->config->dtype)));
}

static void say_data(struct uly_run *run, const char *name, const struct uly_dataset *data)
{
    const struct uly_data_counts *c = &data->counts;
    struct uly_progress *p = &run->progress;
    uly_progress_line(p, "%-9s %s document%s, %s tokens (%s with a label), %s row%s of at most %s",
                      name, COUNT(c->documents), plural(c->documents), COUNT(c->tokens),
                      COUNT(c->valid_tokens), COUNT(c->pieces), plural(c->pieces),
                      COUNT(c->longest_piece));
    if (c->split_rows)
        uly_progress_line(p, "          %s document%s split into %s rows", COUNT(c->split_rows),
                          plural(c->split_rows), COUNT(c->split_pieces));
    if (c->truncated_rows)
        uly_progress_line(p, "          %s document%s cut: %s tokens left out",
                          COUNT(c->truncated_rows), plural(c->truncated_rows),
                          COUNT(c->truncated_tokens));
    if (c->dropped_rows)
        uly_progress_line(p, "          %s document%s dropped: %s tokens", COUNT(c->dropped_rows),
                          plural(c->dropped_rows), COUNT(c->dropped_tokens));
    if (c->unlabeled_rows)
        uly_progress_line(p, "          %s of %s documents have no label that counts",
                          COUNT(c->unlabeled_rows), COUNT(c->documents));
    if (c->bad_rows)
        uly_progress_line(p, "          %s bad row%s skipped, the first: %s", COUNT(c->bad_rows),
                          plural(c->bad_rows), data->first_bad_row);
    if (data->extra_keys[0])
        uly_progress_line(p, "          keys that are not used: %s", data->extra_keys);
}

/* Only where rows are really longer: positions that the model never saw in training. */
static void warn_length(struct uly_run *run)
{
    int64_t limit = run->config->max_position_embeddings, longest = run->data.counts.longest_piece;
    if (limit > 0 && longest > limit)
        uly_progress_line(&run->progress,
                          "warning   rows of %s tokens, but the model's max_position_embeddings is "
                          "%s: it has not seen such positions; "
                          "--config-overrides extends the context",
                          COUNT(longest), COUNT(limit));
}

static void say_batch(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    int64_t rows = run->plan.rows_per_step;
    struct uly_progress *p = &run->progress;
    if (!run->training)
        return;
    uly_progress_line(p,
                      "batch     %s row%s a step, at most %s tokens: %" PRId64
                      " a micro-batch x %" PRId64 " accumulated x %" PRId64 " replica%s",
                      COUNT(rows), plural(rows),
                      COUNT(run->plan.max_tokens * v->gradient_accumulation_steps * v->dp_size),
                      v->per_device_train_batch_size, v->gradient_accumulation_steps, v->dp_size,
                      plural(v->dp_size));
    uly_progress_line(
        p, "steps     %s, %.4g epoch%s of %s steps; %s, learning rate %g", COUNT(run->total_steps),
        (double)run->total_steps / (double)run->plan.steps_per_epoch,
        run->total_steps == run->plan.steps_per_epoch ? "" : "s", COUNT(run->plan.steps_per_epoch),
        uly_schedule_name(run->trainer.options.schedule.type), v->learning_rate);
}

static void say_memory(struct uly_run *run)
{
    int largest = 0;
    for (int r = 1; r < run->size; r++)
        if (uly_rank_memory_total(&run->ranks_memory[r]) >
            uly_rank_memory_total(&run->ranks_memory[largest]))
            largest = r;
    const struct uly_rank_memory *m = &run->ranks_memory[largest];
    char text[400];
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < ULY_LIFE_COUNT && used < sizeof text; i++)
        if (m->by_class[i] > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", used ? ", " : "",
                                     uly_life_name((enum uly_life)i), BYTES(m->by_class[i]));
    uly_progress_line(&run->progress, "memory    %s a rank at most: %s",
                      BYTES(uly_rank_memory_total(m)), text);
    if (run->limit.available < INT64_MAX)
        uly_progress_line(&run->progress, "          %s were available (%s)",
                          BYTES(run->limit.available), run->limit.name);
}

void uly_report_start(struct uly_run *run)
{
    say_model(run);
    say_layout(run);
    say_threads(run);
    say_numbers(run);
    say_data(run, "data", &run->data);
    if (run->split_eval)
        uly_progress_line(&run->progress, "          the last %s of these rows are for evaluation",
                          COUNT(run->eval_plan.options.n_pieces));
    else if (run->has_eval)
        say_data(run, "eval", &run->eval_data);
    warn_length(run);
    say_batch(run);
    say_memory(run);
}

/* ------------------------------------------------------------------ end */

static void say_how_to_use(struct uly_run *run)
{
    struct uly_progress *p = &run->progress;
    const char *out = run->values->output_dir;
    uly_progress_line(p, "To generate text with it in Python:");
    if (run->has_tokenizer) {
        uly_progress_line(p, "  from transformers import AutoModelForCausalLM, AutoTokenizer");
        uly_progress_line(p, "  model = AutoModelForCausalLM.from_pretrained(\"%s\")", out);
        uly_progress_line(p, "  tokenizer = AutoTokenizer.from_pretrained(\"%s\")", out);
        uly_progress_line(p, "  inputs = tokenizer(\"In the beginning\", return_tensors=\"pt\")");
        uly_progress_line(p, "  print(tokenizer.decode(model.generate(**inputs, "
                             "max_new_tokens=100)[0]))");
        return;
    }
    uly_progress_line(p, "  import torch");
    uly_progress_line(p, "  from transformers import AutoModelForCausalLM");
    uly_progress_line(p, "  model = AutoModelForCausalLM.from_pretrained(\"%s\")", out);
    uly_progress_line(p, "  print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=100))");
}

void uly_report_end(struct uly_run *run, const struct uly_run_totals *t)
{
    struct uly_progress *p = &run->progress;
    char loss[64] = "", eval[64] = "";
    if (isfinite(t->loss))
        snprintf(loss, sizeof loss, ", loss of the last %.4f", t->loss);
    if (isfinite(t->eval_loss))
        snprintf(eval, sizeof eval, ", eval loss %.4f", t->eval_loss);
    uly_progress_line(p, "done      %s step%s in %s%s%s", COUNT(t->steps), plural(t->steps),
                      SECONDS(uly_seconds() - run->started), loss, eval);
    if (t->train_seconds > 0)
        uly_progress_line(p, "speed     %s tokens a second, %s tokens in all",
                          COUNT((int64_t)((double)t->tokens / t->train_seconds + 0.5)),
                          COUNT(t->tokens));
    uly_progress_line(p, "memory    %s a rank at most in use, %s resident", BYTES(t->peak_bytes),
                      BYTES(t->rss_bytes));
    uly_progress_line(p, "model     %s", run->values->output_dir);
    say_how_to_use(run);
}
