/* SPDX-License-Identifier: MIT */
#include "train/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum uly_status uly_metrics_open(const char *folder, struct uly_metrics *out)
{
    struct uly_metrics m = {NULL, NULL};
    ULY_TRY(uly_path_join(folder, "metrics.jsonl", &m.path));
    m.file = fopen(m.path, "we");
    if (!m.file) {
        enum uly_status status =
            uly_error_record(ULY_ERR_IO, __FILE__, __LINE__, __func__, "%s: cannot create it: %s",
                             m.path, strerror(errno));
        uly_free(m.path);
        return status;
    }
    *out = m;
    return ULY_OK;
}

static void put_double(FILE *f, const char *key, double x)
{
    if (isfinite(x))
        fprintf(f, ", \"%s\": %.9g", key, x);
    else
        fprintf(f, ", \"%s\": null", key); /* JSON has no NaN */
}

static void put_int(FILE *f, const char *key, int64_t x)
{
    fprintf(f, ", \"%s\": %" PRId64, key, x);
}

static enum uly_status end_line(struct uly_metrics *m)
{
    fputs("}\n", m->file);
    ULY_FAIL_IF(fflush(m->file) != 0 || ferror(m->file),
                errno == ENOSPC || errno == EDQUOT ? ULY_ERR_NO_SPACE : ULY_ERR_IO,
                "%s: cannot write: %s", m->path, strerror(errno));
    return ULY_OK;
}

enum uly_status uly_metrics_step(struct uly_metrics *m, const struct uly_step_metrics *x)
{
    if (!m->file)
        return ULY_OK;
    fprintf(m->file, "{\"step\": %" PRId64, x->step);
    put_double(m->file, "loss", x->loss);
    put_double(m->file, "grad_norm", x->grad_norm);
    put_double(m->file, "learning_rate", x->learning_rate);
    put_double(m->file, "epoch", x->epoch);
    put_int(m->file, "tokens", x->tokens);
    put_int(m->file, "valid_tokens", x->valid_tokens);
    put_double(m->file, "tokens_per_second", x->tokens_per_second);
    put_double(m->file, "tflops", x->tflops);
    put_double(m->file, "step_seconds", x->step_seconds);
    put_int(m->file, "comm_bytes", x->comm_bytes);
    put_double(m->file, "comm_seconds", x->comm_seconds);
    put_int(m->file, "peak_bytes", x->peak_bytes);
    put_int(m->file, "rss_bytes", x->rss_bytes);
    return end_line(m);
}

enum uly_status uly_metrics_eval(struct uly_metrics *m, const struct uly_eval_metrics *x)
{
    if (!m->file)
        return ULY_OK;
    fprintf(m->file, "{\"step\": %" PRId64, x->step);
    put_double(m->file, "epoch", x->epoch);
    put_double(m->file, "eval_loss", x->eval_loss);
    put_double(m->file, "perplexity", x->perplexity);
    put_int(m->file, "eval_tokens", x->eval_tokens);
    put_int(m->file, "eval_valid_tokens", x->eval_valid_tokens);
    put_double(m->file, "eval_seconds", x->eval_seconds);
    return end_line(m);
}

void uly_metrics_close(struct uly_metrics *m)
{
    if (m->file)
        fclose(m->file);
    uly_free(m->path);
    m->file = NULL;
    m->path = NULL;
}
