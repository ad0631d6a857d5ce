/* SPDX-License-Identifier: MIT
 *
 * The second half of kernels.inc.h: norms, activation, loss, optimizer, heads. Formulas as in backend.h.
 */

/* ------------------------------------------------------------------ RMS norm */

/* 1 / sqrt(mean(x^2) + eps), the sum in double by chunks. */
static double inverse_rms(struct uly_span x, int64_t n, double eps)
{
    float xs[CHUNK];
    double sum = 0;
    EACH_CHUNK(i, k, n)
    {
        const float *p = get(x, i, k, xs);
        uly_vf part = uly_vf_zero();
        EACH_VECTOR(j, k)
        {
            uly_vf v = load(p + j, k - j);
            part = uly_vf_fma(v, v, part);
        }
        sum += (double)uly_vf_sum(part);
    }
    return 1 / sqrt(sum / (double)n + eps);
}

static void rmsnorm(struct uly_span x, struct uly_span w, struct uly_span y, int64_t n, double eps)
{
    float xs[CHUNK], ws[CHUNK], ys[CHUNK];
    float r = (float)inverse_rms(x, n, eps);
    EACH_CHUNK(i, k, n)
    {
        const float *px = get(x, i, k, xs), *pw = get(w, i, k, ws);
        float *py = target(y, i, ys);
        EACH_VECTOR(j, k)
        store(py + j, load(px + j, k - j) * r * load(pw + j, k - j), k - j);
        put(y, i, k, ys);
    }
}

static struct uly_rms_stats rms_stats(struct uly_span x, struct uly_span w, struct uly_span dy,
                                      int64_t n, double eps)
{
    float xs[CHUNK], ws[CHUNK], ds[CHUNK];
    double sum = 0, r = inverse_rms(x, n, eps);
    EACH_CHUNK(i, k, n)
    {
        const float *px = get(x, i, k, xs), *pw = get(w, i, k, ws), *pd = get(dy, i, k, ds);
        uly_vf part = uly_vf_zero();
        EACH_VECTOR(j, k)
        part = uly_vf_fma(load(pd + j, k - j) * load(pw + j, k - j), load(px + j, k - j), part);
        sum += (double)uly_vf_sum(part);
    }
    return (struct uly_rms_stats){(float)r, (float)(r * r * r * sum / (double)n)};
}

static void rmsnorm_dx(struct uly_span x, struct uly_span w, struct uly_span dy, struct uly_span dx,
                       int64_t n, struct uly_rms_stats stats)
{
    float xs[CHUNK], ws[CHUNK], ds[CHUNK], out[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *px = get(x, i, k, xs), *pw = get(w, i, k, ws), *pd = get(dy, i, k, ds);
        const float *old = get(dx, i, k, out);
        float *to = target(dx, i, out);
        EACH_VECTOR(j, k)
        {
            uly_vf g = load(pd + j, k - j) * load(pw + j, k - j);
            uly_vf v = g * stats.r - load(px + j, k - j) * stats.back;
            store(to + j, load(old + j, k - j) + v, k - j);
        }
        put(dx, i, k, out);
    }
}

static void rmsnorm_dw(struct uly_span x, int64_t x_stride, struct uly_span dy, int64_t dy_stride,
                       const struct uly_rms_stats *stats, int64_t rows, int64_t n, float *dw)
{
    float xs[CHUNK], ds[CHUNK], partial[CHUNK] = {0};
    for (int64_t i = 0; i < rows; i++) {
        const float *px = get(x, i * x_stride, n, xs), *pd = get(dy, i * dy_stride, n, ds);
        EACH_VECTOR(j, n)
        {
            uly_vf v = load(px + j, n - j) * stats[i].r;
            store(partial + j, uly_vf_fma(v, load(pd + j, n - j), load(partial + j, n - j)), n - j);
        }
    }
    for (int64_t j = 0; j < n; j++)
        dw[j] += partial[j];
}

/* ------------------------------------------------------------------ SwiGLU */

static void swiglu(struct uly_span gate, struct uly_span up, struct uly_span y, int64_t n)
{
    float gs[CHUNK], us[CHUNK], ys[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *pg = get(gate, i, k, gs), *pu = get(up, i, k, us);
        float *py = target(y, i, ys);
        EACH_VECTOR(j, k)
        {
            uly_vf g = load(pg + j, k - j);
            uly_vf s = 1.0f / (1.0f + uly_vf_exp(-g));
            store(py + j, g * s * load(pu + j, k - j), k - j);
        }
        put(y, i, k, ys);
    }
}

static void swiglu_back(struct uly_span gate, struct uly_span up, struct uly_span dy,
                        struct uly_span dgate, struct uly_span dup, int64_t n)
{
    float gs[CHUNK], us[CHUNK], ds[CHUNK], dgs[CHUNK], dus[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *pg = get(gate, i, k, gs), *pu = get(up, i, k, us), *pd = get(dy, i, k, ds);
        float *to_gate = target(dgate, i, dgs), *to_up = target(dup, i, dus);
        EACH_VECTOR(j, k)
        {
            uly_vf g = load(pg + j, k - j), u = load(pu + j, k - j), d = load(pd + j, k - j);
            uly_vf s = 1.0f / (1.0f + uly_vf_exp(-g));
            uly_vf silu = g * s;
            store(to_gate + j, d * u * (s + silu * (1.0f - s)), k - j);
            store(to_up + j, d * silu, k - j);
        }
        put(dgate, i, k, dgs);
        put(dup, i, k, dus);
    }
}

/* ------------------------------------------------------------------ loss */

static float largest_of(const float *x, int64_t n)
{
    uly_vf most = uly_vf_set1(-INFINITY);
    int64_t j = 0;
    for (; j + W <= n; j += W)
        most = uly_vf_max(uly_vf_load(x + j), most); /* NaN is passed over; the sum shows it */
    float top = uly_vf_hmax(most);
    for (; j < n; j++)
        top = x[j] > top ? x[j] : top;
    return top;
}

static double sum_of_exp(const float *x, int64_t n, float top)
{
    double sum = 0;
    EACH_CHUNK(i, k, n)
    {
        uly_vf part = uly_vf_zero();
        int64_t j = 0;
        for (; j + W <= k; j += W)
            part += uly_vf_exp(uly_vf_load(x + i + j) - top);
        if (j < k) { /* lanes beyond the row must add nothing */
            float last[W];
            for (int l = 0; l < W; l++)
                last[l] = l < k - j ? x[i + j + l] - top : -INFINITY;
            part += uly_vf_exp(uly_vf_load(last));
        }
        sum += (double)uly_vf_sum(part);
    }
    return sum;
}

/* The label's own gradient, factor (p - 1), is made in double from the sum of the others: where p is nearly 1, float32
 * would leave nothing of the difference. */
static float cross_entropy(const float *logits, int64_t n, int64_t label, double factor,
                           struct uly_span dlogits)
{
    float buffer[CHUNK];
    float top = largest_of(logits, n);
    double sum = sum_of_exp(logits, n, top), at_label = (double)logits[label] - (double)top;
    if (dlogits.p == NULL)
        return (float)(log(sum) - at_label);
    float share = (float)(factor / sum);
    EACH_CHUNK(i, k, n)
    {
        float *to = target(dlogits, i, buffer);
        EACH_VECTOR(j, k)
        store(to + j, uly_vf_exp(load(logits + i + j, k - j) - top) * share, k - j);
        if (label >= i && label < i + k)
            to[label - i] = (float)(factor * (exp(at_label) - sum) / sum);
        put(dlogits, i, k, buffer);
    }
    return (float)(log(sum) - at_label);
}

/* ------------------------------------------------------------------ optimizer */

static void adamw(const struct uly_adamw_factors *f, float *master, float *m, float *v,
                  const float *grad, struct uly_span model, int64_t n)
{
    EACH_VECTOR(j, n)
    {
        int64_t left = n - j;
        uly_vf g = load(grad + j, left) * f->grad_factor, p = load(master + j, left);
        uly_vf first = load(m + j, left) * f->beta1 + g * f->one_less_beta1;
        uly_vf second = load(v + j, left) * f->beta2 + g * g * f->one_less_beta2;
        uly_vf root = uly_vf_sqrt(second) * f->inverse_root + f->eps;
        p -= p * f->decay + first * f->step_size / root;
        store(m + j, first, left);
        store(v + j, second, left);
        store(master + j, p, left);
    }
    if (model.p != NULL)
        convert((struct uly_span){(unsigned char *)master, ULY_DTYPE_F32}, model, n);
}

/* ------------------------------------------------------------------ heads */

/* Sine and cosine of an angle of any size: in double, the angle is brought to [-pi/4, pi/4] by the nearest multiple of
 * pi/2 (in two parts: the first has 33 bits, so that its products with integers below 2^20 are exact), and only that
 * remainder becomes a float. Polynomials: Taylor's, with 2e-8 left over at pi/4. */
static void angles(double position, const double *inv_freq, int64_t n, float scale_by, float *c,
                   float *s)
{
    const double shift =
        6755399441055744.0; /* 1.5 * 2^52: the rounded quotient is in the low bits */
    for (int64_t j = 0; j < n; j += W) {
        double lane[W];
        int32_t quadrant_of[W];
        float r_of[W];
        for (int l = 0; l < W; l++)
            lane[l] = j + l < n ? position * inv_freq[j + l] : 0;
        for (int l = 0; l < W; l++) {
            double t = lane[l] * 0.63661977236758134 + shift, q = t - shift;
            uint64_t bits;
            memcpy(&bits, &t, 8);
            quadrant_of[l] = (int32_t)(bits & 3);
            r_of[l] =
                (float)((lane[l] - q * 1.57079632673412561417) - q * 6.07710050650619224932e-11);
        }
        uly_vi quadrant;
        memcpy(&quadrant, quadrant_of, sizeof quadrant);
        uly_vf r = uly_vf_load(r_of), z = r * r;
        uly_vf p = 2.75573192e-6f * z - 1.98412698e-4f;
        p = p * z + 8.33333333e-3f;
        p = p * z - 1.66666667e-1f;
        uly_vf sine = p * z * r + r;
        uly_vf q = -2.75573192e-7f * z + 2.48015873e-5f;
        q = q * z - 1.38888889e-3f;
        q = q * z + 4.16666667e-2f;
        uly_vf cosine = q * z * z - 0.5f * z + 1.0f;
        uly_vi swap = (quadrant & 1) != 0;
        uly_vf a = uly_vf_select(swap, cosine, sine), b = uly_vf_select(swap, sine, cosine);
        a = (uly_vf)((uly_vi)a ^ ((quadrant & 2) << 30));       /* quadrants 2, 3 */
        b = (uly_vf)((uly_vi)b ^ (((quadrant + 1) & 2) << 30)); /* quadrants 1, 2 */
        store(s + j, a * scale_by, n - j);
        store(c + j, b * scale_by, n - j);
    }
}

static void rotate(struct uly_span src, struct uly_span bias, struct uly_span dst, bool accumulate,
                   int64_t first, int64_t half, int64_t n, const float *c, const float *s)
{
    float as[CHUNK], bs[CHUNK], biases[2][CHUNK], tos[2][CHUNK];
    const float *pa = get(src, first, n, as), *pb = get(src, first + half, n, bs);
    const float *bias_a = NULL, *bias_b = NULL, *old_a = NULL, *old_b = NULL;
    if (bias.p != NULL) {
        bias_a = get(bias, first, n, biases[0]);
        bias_b = get(bias, first + half, n, biases[1]);
    }
    if (accumulate) {
        old_a = get(dst, first, n, tos[0]);
        old_b = get(dst, first + half, n, tos[1]);
    }
    float *to_a = target(dst, first, tos[0]), *to_b = target(dst, first + half, tos[1]);
    EACH_VECTOR(j, n)
    {
        int64_t left = n - j;
        uly_vf a = load(pa + j, left), b = load(pb + j, left);
        if (bias_a != NULL) {
            a += load(bias_a + j, left);
            b += load(bias_b + j, left);
        }
        uly_vf cosine = load(c + j, left), sine = load(s + j, left);
        uly_vf x = a * cosine - b * sine, y = b * cosine + a * sine;
        if (accumulate) {
            x += load(old_a + j, left);
            y += load(old_b + j, left);
        }
        store(to_a + j, x, left);
        store(to_b + j, y, left);
    }
    put(dst, first, n, tos[0]);
    put(dst, first + half, n, tos[1]);
}

static void move(struct uly_span src, struct uly_span bias, struct uly_span dst, bool accumulate,
                 int64_t n)
{
    if (bias.p == NULL) {
        if (accumulate)
            add(src, dst, n);
        else
            convert(src, dst, n);
        return;
    }
    float xs[CHUNK], bs[CHUNK], tos[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *x = get(src, i, k, xs), *b = get(bias, i, k, bs);
        const float *old = accumulate ? get(dst, i, k, tos) : NULL;
        float *to = target(dst, i, tos);
        EACH_VECTOR(j, k)
        {
            uly_vf v = load(x + j, k - j) + load(b + j, k - j);
            store(to + j, accumulate ? v + load(old + j, k - j) : v, k - j);
        }
        put(dst, i, k, tos);
    }
}

static float dot(struct uly_span a, struct uly_span b, int64_t n)
{
    float as[CHUNK], bs[CHUNK];
    double sum = 0;
    EACH_CHUNK(i, k, n)
    {
        const float *x = get(a, i, k, as), *y = get(b, i, k, bs);
        uly_vf part = uly_vf_zero();
        EACH_VECTOR(j, k)
        part = uly_vf_fma(load(x + j, k - j), load(y + j, k - j), part);
        sum += (double)uly_vf_sum(part);
    }
    return (float)sum;
}

/* ------------------------------------------------------------------ instruction peak */

/* x = x / 2 + 1/2 on every chain: values near 1, whatever n is. Written out, so that every compiler keeps the chains in
 * registers. */
static void multiply_add(int64_t n, float *out)
{
    volatile float half = 0.5f;
    uly_vf a = uly_vf_set1(half), b = uly_vf_set1(half);
    uly_vf x0 = a, x1 = a + 1, x2 = a + 2, x3 = a + 3, x4 = a + 4, x5 = a + 5;
    uly_vf x6 = a + 6, x7 = a + 7, x8 = a + 8, x9 = a + 9, x10 = a + 10, x11 = a + 11;
    for (int64_t i = 0; i < n; i++) {
        x0 = uly_vf_fma(x0, a, b);
        x1 = uly_vf_fma(x1, a, b);
        x2 = uly_vf_fma(x2, a, b);
        x3 = uly_vf_fma(x3, a, b);
        x4 = uly_vf_fma(x4, a, b);
        x5 = uly_vf_fma(x5, a, b);
        x6 = uly_vf_fma(x6, a, b);
        x7 = uly_vf_fma(x7, a, b);
        x8 = uly_vf_fma(x8, a, b);
        x9 = uly_vf_fma(x9, a, b);
        x10 = uly_vf_fma(x10, a, b);
        x11 = uly_vf_fma(x11, a, b);
    }
    uly_vf_store(out,
                 ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)) + ((x8 + x9) + (x10 + x11)));
}
