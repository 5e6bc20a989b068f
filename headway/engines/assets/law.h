/* Body of a generated controller: plant, law and guard in C99. Compile without contraction of products and sums
 * (-ffp-contract=off), or budgets may differ from Python's by a token. One headway_controller per engine, called from
 * one thread; it allocates nothing and never fails. */
#include <math.h>
#include <stdint.h>

enum { HEADWAY_STATIC, HEADWAY_UPDOWN, HEADWAY_PI, HEADWAY_BALANCED, HEADWAY_FEEDFORWARD, HEADWAY_TRACKER };
enum { HEADWAY_LINEAR, HEADWAY_CURVED, HEADWAY_ROOFLINE, HEADWAY_CONCURRENCY };
enum {
    HEADWAY_GOOD, HEADWAY_MISSING, HEADWAY_NEGATIVE, HEADWAY_EMPTY, HEADWAY_SUMS, HEADWAY_STALE, HEADWAY_SKIPPED,
    HEADWAY_CLOCK, HEADWAY_DOUBLE, HEADWAY_NOT_APPLIED, HEADWAY_NO_AUTHORITY, HEADWAY_FALLBACK, HEADWAY_COUNTS
};
#define HEADWAY_PREDICTS (HEADWAY_LAW == HEADWAY_FEEDFORWARD || HEADWAY_LAW == HEADWAY_TRACKER)

/* What the engine read: of the step that ended, and of the one to be composed. Seconds, tokens, requests; NaN where
 * there is none, also for the two stamps at the end. */
typedef struct {
    double step_time_s, prefill_tokens, decode_requests, binding, ready_requests;
    double decode_kv_tokens, prefill_pairs, prefill_requests, ready_kv_tokens, context_tokens;
    double step_number, clock_s;
} headway_reading;

typedef struct {
    double state[4], fitting;
    double held, held_before, held_earlier, prefill, safe, cap, ready;
    double step_number, clock_s, y, kv, ready_kv, late, seen, bad, over, calls;
    double single[2], flips[2]; /* of decode-only steps, and of steps with prefill */
    int doubled[2], reverted;
    uint64_t bits;
    unsigned long counts[HEADWAY_COUNTS];
} headway_controller;

static inline double headway_min(double a, double b) { return b < a ? b : a; }
static inline double headway_max(double a, double b) { return b > a ? b : a; }
static inline int headway_real(double x) { return 0.0 <= x && x < INFINITY; }

static inline double headway_norm(double a, double b, double power) {
    double large = headway_max(a, b), small = headway_min(a, b);
    if (power <= 0.0 || large <= 0.0 || small <= 0.0) return large;
    return large * pow(1.0 + pow(small / large, power), 1.0 / power);
}

static inline double headway_padded(double tokens, double stride, double limit) {
    if (stride <= 1.0 || tokens <= 0.0 || tokens > limit) return tokens;
    double size = tokens <= stride ? pow(2.0, ceil(log2(tokens))) : ceil(tokens / stride) * stride;
    return headway_min(size, limit);
}

/* What the structures that are not linear add; pairs * r / p is taken in the order of Headway's compiled plants. */
static inline double headway_bent(double n, double kv, double p, double pairs, double r) {
    const double *c = HEADWAY_PLANT + 13;
    double tokens = n + p;
    if (HEADWAY_STRUCTURE == HEADWAY_ROOFLINE) return headway_norm(c[0] + c[1] * kv, c[2] * tokens + c[3] * pairs, c[4]);
    if (HEADWAY_STRUCTURE == HEADWAY_CONCURRENCY) return c[0] * sqrt(n);
    const double *b = c + (p > 0.0 ? 8 : 0), *s = c + 16;
    double limit = p > 0.0 ? s[4] : s[3], t = 0.0;
    if (b[0] > 0.0 || b[1] > 0.0) {
        double context = p > 0.0 ? headway_max(pairs * r / p - p / 2.0, 0.0) : 0.0;
        t = b[0] * context + b[1] * headway_max(n > 0.0 ? kv / n : 0.0, r > 0.0 ? context / r : 0.0);
    }
    if (b[2] > 0.0) t += b[2] * headway_norm(tokens, s[0], s[1]);
    if (b[3] > 0.0 && s[2] > 0.0) t += b[3] * (1.0 - exp(-tokens / s[2]));
    if (b[4] > 0.0) t += b[4] * headway_padded(tokens, s[5], limit);
    if (tokens > limit) t += b[5] + b[6] * (tokens - limit);
    return t + b[7] * headway_max(kv - s[6], 0.0);
}

/* Predicted duration of a step [s]. */
static inline double headway_step_time(double n, double kv, double p, double pairs, double r) {
    const double *c = HEADWAY_PLANT + (p > 0.0 ? 6 : 0);
    double t = c[0] + c[1] * n + c[2] * kv + c[3] * p + c[4] * pairs + c[5] * r;
    return HEADWAY_STRUCTURE == HEADWAY_LINEAR ? t : t + headway_bent(n, kv, p, pairs, r);
}

static inline double headway_at(double n, double kv, double context, double u) {
    return headway_step_time(n, kv, u, u * (context + 0.5 * u), 1.0);
}

/* Most prompt tokens that end within `seconds`. Plants grow with them, so the answer does not depend on the start. */
static inline double headway_largest(double n, double kv, double context, double seconds, double most, double start) {
    const double slope_0 = HEADWAY_PLANT[9] + (HEADWAY_STRUCTURE == HEADWAY_ROOFLINE ? HEADWAY_PLANT[15] : 0.0)
        + (HEADWAY_STRUCTURE == HEADWAY_CURVED ? HEADWAY_PLANT[23] + HEADWAY_PLANT[25] : 0.0);
    double low = 0.0, high = most + 1.0, jump = 1.0, slope = slope_0, u_before = 0.0, t_before = 0.0;
    double u = headway_max(headway_min(slope > 0.0 ? start : most, most), 1.0);
    for (int tries = 1; high - low > 1.0; ++tries) {
        double t = headway_at(n, kv, context, u), gap = seconds - t;
        if (gap >= 0.0) low = u; else high = u;
        if (tries > 1) {
            double secant = (t - t_before) / (u - u_before);
            if (secant > 0.0) slope = secant;
        }
        u_before = u, t_before = t;
        if (tries <= 5 && slope > 0.0) {
            u = floor(u + gap / slope);
        } else {
            u = floor(headway_min(low + jump, (low + high) / 2.0));
            jump += jump;
        }
        if (u >= high) u = high - 1.0;
        if (!(u > low)) u = low + 1.0;
    }
    return low;
}

static inline double headway_held(double u, double last) {
    const double q = floor(HEADWAY_QUANTUM_TOKENS);
    if (q <= 1.0 || u < q) return floor(u);
    if (last < 0.0) return floor(u / q) * q;
    double low = floor(headway_max(u - 0.5 * q, q) / q) * q;
    double high = floor(headway_min(u + 0.5 * q, headway_max(HEADWAY_MOST_TOKENS, u)) / q) * q;
    return headway_min(headway_max(last, low), high);
}

/* The law's prefill budget from its state [tokens]. */
static inline double headway_prefill(double *state, double *fitting, double p, double n, double ready, double kv, double context) {
    if (!HEADWAY_PREDICTS) {
        if (HEADWAY_LAW != HEADWAY_PI) return floor(state[0]);
        return state[2] = headway_held(state[1], state[2]);
    }
    const double *g = HEADWAY_GAINS;
    double seconds = HEADWAY_LAW == HEADWAY_TRACKER ? (1.0 - g[3]) * HEADWAY_BUDGET_S * exp(-state[2] - state[0])
                                                    : (1.0 - g[0]) * HEADWAY_BUDGET_S + state[0];
    double *last = HEADWAY_LAW == HEADWAY_TRACKER ? state + 3 : state + 1;
    double u = headway_largest(ready, kv, context, seconds, floor(HEADWAY_MOST_TOKENS), *fitting);
    *fitting = u;
    if (HEADWAY_STRUCTURE == HEADWAY_CURVED && HEADWAY_PLANT[26] + HEADWAY_PLANT[27] > 0.0) {
        double limit = HEADWAY_PLANT[33], edge = floor(limit - ready), worth = p > 0.0 && p + n > limit ? 1.0 : 1.1;
        if (1.0 <= edge && edge < u
            && u / headway_at(ready, kv, context, u) < worth * edge / headway_at(ready, kv, context, edge)) u = edge;
    }
    double command = headway_held(u, *last);
    if (command > u && headway_at(ready, kv, context, command) > 1.05 * headway_at(ready, kv, context, u))
        command = headway_held(u, -1.0);
    return *last = headway_max(command, HEADWAY_LEAST_TOKENS);
}

/* What a step teaches the law. */
static inline void headway_move(double *state, double y, double p, int bound, double predicted) {
    const double *g = HEADWAY_GAINS, budget = HEADWAY_BUDGET_S;
    double u = state[0];
    int late = y > budget;
    if (HEADWAY_LAW == HEADWAY_UPDOWN) {
        if (late) u = headway_max(u * g[2], 1.0);
        else if (bound && y < (1.0 - g[0]) * budget) u = u + g[1];
        state[0] = headway_min(u, g[4]);
    } else if (HEADWAY_LAW == HEADWAY_BALANCED) {
        if (late) u = headway_max(u - g[1] * (1.0 - g[0]) * u, 1.0);
        else if (bound) u = u + g[1] * g[0] * headway_max(u, 20.0);
        state[0] = headway_min(u, g[3]);
    } else if (HEADWAY_LAW == HEADWAY_PI) {
        double setpoint = (1.0 - g[0]) * budget;
        if (!(bound || y > setpoint)) return;
        double error = (setpoint - y) / g[4];
        double withheld = HEADWAY_QUANTUM_TOKENS >= 2.0 && state[2] >= 0.0 ? state[1] - state[2] : 0.0;
        double integral = state[0] + g[2] * (error - withheld), wanted = integral + g[1] * error;
        u = headway_max(wanted, headway_max(state[1] - g[5], 0.0));
        u = headway_min(u, headway_min(state[1] + g[5], g[7]));
        state[0] = integral + g[3] * (u - wanted);
        state[1] = u;
    } else if (HEADWAY_LAW == HEADWAY_FEEDFORWARD) {
        double reach = 0.4 * budget;
        if (bound || y > (1.0 - g[0]) * budget)
            state[0] = headway_min(headway_max(state[0] + g[1] * (predicted - y - state[0]), -reach), reach);
    } else if (HEADWAY_LAW == HEADWAY_TRACKER) {
        int mixed = p > 0.0;
        predicted = headway_max(predicted, 1e-12);
        if (mixed ? !(late || bound) : late && predicted * exp(state[0]) > budget) return;
        double score = log(y) - log(predicted) - state[0], *quantile = state + (mixed ? 2 : 1), q = *quantile;
        state[0] += g[1] * headway_min(headway_max(score, -0.15), 0.15);
        *quantile = headway_min(headway_max(q + g[2] * ((score > q ? 1.0 : 0.0) - g[0]), 0.0), 1.0);
    }
}

static inline double headway_capped(const headway_controller *c, double u, double ready) {
    return headway_min(headway_min(u, c->cap), headway_max(HEADWAY_FALLBACK_TOKENS - ready, 0.0));
}

static inline long headway_send(headway_controller *c, double budget) {
    c->held_earlier = c->held_before, c->held_before = c->held;
    c->held = headway_min(floor(budget), HEADWAY_MAX_TOKENS);
    return (long)c->held;
}

/* Whether a reading is the next one: by its stamps, else by not being the last one again. */
static inline int headway_order(headway_controller *c, const headway_reading *r) {
    double number = isfinite(r->step_number) ? r->step_number : NAN, clock = isfinite(r->clock_s) ? r->clock_s : NAN;
    int found = HEADWAY_GOOD;
    if (isnan(number) && isnan(clock)) {
        if (r->decode_kv_tokens > 0.0 && r->step_time_s == c->y && r->decode_kv_tokens == c->kv
            && r->ready_kv_tokens == c->ready_kv) found = HEADWAY_STALE;
    } else if (number == c->step_number || clock == c->clock_s) found = HEADWAY_STALE;
    else if (number < c->step_number || clock < c->clock_s) found = HEADWAY_CLOCK;
    else if (number > c->step_number + 1.0) found = HEADWAY_SKIPPED;
    if (!isnan(number)) c->step_number = number;
    if (!isnan(clock)) c->clock_s = clock;
    c->y = r->step_time_s, c->kv = r->decode_kv_tokens, c->ready_kv = r->ready_kv_tokens;
    return found;
}

static inline int headway_known(const headway_reading *r) {
    return headway_real(r->decode_kv_tokens) && headway_real(r->prefill_pairs) && headway_real(r->prefill_requests)
        && (r->decode_requests == 0.0 || r->decode_kv_tokens > 0.0)
        && (r->prefill_tokens == 0.0 || (r->prefill_pairs > 0.0 && r->prefill_requests > 0.0));
}

static inline int headway_unsound(const headway_reading *r) {
    const double values[10] = {
        r->step_time_s, r->prefill_tokens, r->decode_requests, r->binding, r->ready_requests,
        r->decode_kv_tokens, r->prefill_pairs, r->prefill_requests, r->ready_kv_tokens, r->context_tokens,
    };
    const int last = HEADWAY_PREDICTS ? 10 : 5;
    for (int i = 0; i < last; ++i) if (!isfinite(values[i])) return HEADWAY_MISSING;
    for (int i = 0; i < last; ++i) if (values[i] < 0.0) return HEADWAY_NEGATIVE;
    if (values[0] == 0.0) return HEADWAY_EMPTY;
    if (HEADWAY_PREDICTS && !(headway_known(r) && (r->ready_requests == 0.0 || r->ready_kv_tokens > 0.0))) return HEADWAY_SUMS;
    return HEADWAY_GOOD;
}

/* Whether a sound reading can be of one step, and of one that followed the command. */
static inline int headway_examine(headway_controller *c, double y, double p, double n, double predicted) {
    if (!(HEADWAY_LEAST_S <= y && y <= HEADWAY_MOST_S)) return HEADWAY_CLOCK;
    if (predicted > 0.0) {
        int mixed = p > 0.0, before = c->doubled[mixed];
        double ratio = y / predicted, single = c->single[mixed];
        int doubled = 1.7 * single <= ratio && ratio <= 2.3 * single;
        c->flips[mixed] = doubled != before ? c->flips[mixed] + 1.0 : 0.0;
        if (doubled && before) doubled = 0; /* two in a row: a new level */
        if (!doubled) c->single[mixed] = ratio;
        c->doubled[mixed] = doubled;
        if (doubled && c->flips[mixed] >= 5.0) return HEADWAY_DOUBLE;
    }
    if (n + p <= headway_max(c->held, headway_max(c->held_before, c->held_earlier))) {
        c->over = 0.0;
        return HEADWAY_GOOD;
    }
    c->over += 1.0;
    return c->over >= HEADWAY_OVER_STEPS ? HEADWAY_NOT_APPLIED : HEADWAY_GOOD;
}

static inline void headway_resume(headway_controller *c) {
    double u = headway_min(headway_max(c->prefill, HEADWAY_LAW == HEADWAY_UPDOWN || HEADWAY_LAW == HEADWAY_BALANCED ? 1.0 : 0.0),
                           HEADWAY_MOST_TOKENS);
    if (HEADWAY_LAW == HEADWAY_PI) c->state[0] = c->state[1] = c->state[2] = u;
    else if (HEADWAY_LAW == HEADWAY_FEEDFORWARD) c->state[1] = u;
    else if (HEADWAY_LAW == HEADWAY_TRACKER) c->state[3] = u;
    else c->state[0] = u;
}

/* Watchdog and law, after a good reading of a step with decodes. */
static inline void headway_learn(headway_controller *c, double y, double p, int bound, double predicted) {
    int late = y > HEADWAY_BUDGET_S, powerless = late && p == 0.0 && c->prefill < 1.0;
    uint64_t bit = late && p > 0.0;
    if (powerless) ++c->counts[HEADWAY_NO_AUTHORITY];
    else if (bound && p > 0.0 && !late) c->safe = c->prefill;
    c->late += (double)bit - (double)(c->bits >> (HEADWAY_WINDOW_STEPS - 1) & 1);
    c->bits = (c->bits << 1 | bit) & ((UINT64_C(1) << HEADWAY_WINDOW_STEPS) - 1);
    c->seen += 1.0;
    if (c->late >= HEADWAY_LATE_STEPS) {
        c->cap = c->reverted ? floor(c->cap / 2.0) : HEADWAY_FALLBACK_TOKENS < INFINITY ? c->prefill : headway_min(c->prefill, c->safe);
        if (!c->reverted) ++c->counts[HEADWAY_FALLBACK];
        c->reverted = 1, c->bits = 0, c->late = 0.0, c->seen = 0.0;
    } else if (c->reverted && c->seen >= HEADWAY_WINDOW_STEPS && c->late <= HEADWAY_CLEAN_STEPS) {
        c->reverted = 0, c->bits = 0, c->late = 0.0, c->seen = 0.0;
        headway_resume(c);
    }
    if (HEADWAY_PREDICTS || !(c->reverted || powerless)) headway_move(c->state, y, p, bound, predicted);
}

static inline long headway_command(headway_controller *c, const headway_reading *r) {
    if (HEADWAY_LAW == HEADWAY_STATIC) return headway_send(c, HEADWAY_MOST_TOKENS);
    double ready = r->ready_requests;
    if (ready > 0.0 || !HEADWAY_PREDICTS) {
        double u = headway_prefill(c->state, &c->fitting, r->prefill_tokens, r->decode_requests, ready, r->ready_kv_tokens, r->context_tokens);
        c->prefill = c->reverted ? headway_capped(c, u, ready) : u;
    }
    return headway_send(c, ready == 0.0 ? HEADWAY_MOST_TOKENS : c->prefill + ready);
}

/* After a bad reading: not above the last command, but for the one token of each request that decodes. */
static inline long headway_hold(headway_controller *c, const headway_reading *r, int seen) {
    c->bad += 1.0;
    if (HEADWAY_LAW == HEADWAY_STATIC) return headway_send(c, HEADWAY_MOST_TOKENS);
    int here = r->ready_requests > 0.0 && isfinite(r->ready_requests); /* nobody to decode may be an outage read as zero */
    if (here) c->ready = headway_min(r->ready_requests, HEADWAY_MAX_SEQS);
    double ready = c->ready, u = c->prefill, state[4] = {c->state[0], c->state[1], c->state[2], c->state[3]};
    if (HEADWAY_PREDICTS && here && seen)
        u = headway_min(u, headway_prefill(state, &c->fitting, r->prefill_tokens, r->decode_requests, ready, r->ready_kv_tokens, r->context_tokens));
    if (c->bad > HEADWAY_BLIND_STEPS) u = headway_min(u, headway_max(HEADWAY_FALLBACK_TOKENS - ready, 0.0));
    if (c->reverted) u = headway_capped(c, u, ready);
    return headway_send(c, headway_max(headway_min(u + ready, c->held), ready));
}

/* Back to the state before the first step. */
static inline void headway_reset(headway_controller *c) {
    static const headway_controller none = {0};
    *c = none;
    for (int i = 0; i < 4; ++i) c->state[i] = HEADWAY_STATE[i];
    c->held = c->held_before = c->held_earlier = HEADWAY_MAX_TOKENS;
    c->step_number = c->clock_s = c->single[0] = c->single[1] = c->y = c->kv = c->ready_kv = NAN;
    double state[4] = {c->state[0], c->state[1], c->state[2], c->state[3]};
    c->prefill = headway_prefill(state, &c->fitting, 0.0, 0.0, HEADWAY_HULL_REQUESTS, HEADWAY_HULL_KV_TOKENS, 0.0);
    c->safe = c->cap = c->prefill;
}

/* Token budget of the step to be composed, the decoding requests' own tokens included; within the engine's limit. */
static inline long headway_update(headway_controller *c, const headway_reading *r) {
    double y = r->step_time_s, p = r->prefill_tokens, n = r->decode_requests, ready = r->ready_requests, predicted = NAN;
    int kind = headway_order(c, r), unsound = headway_unsound(r);
    c->calls += 1.0;
    if (unsound) {
        kind = unsound;
    } else if (!kind) {
        if (n + p > 0.0 && headway_known(r))
            predicted = headway_step_time(n, r->decode_kv_tokens, p, r->prefill_pairs, r->prefill_requests);
        kind = headway_examine(c, y, p, n, predicted);
    }
    int seen = !HEADWAY_PREDICTS || ready == 0.0
        || (r->ready_kv_tokens > 0.0 && isfinite(r->ready_kv_tokens) && headway_real(r->context_tokens));
    if (kind && !(c->calls == 1.0 && isnan(y) && headway_real(ready) && seen)) {
        ++c->counts[kind];
        return headway_hold(c, r, seen);
    }
    if (!kind) {
        c->bad = 0.0;
        if (n > 0.0 && HEADWAY_LAW != HEADWAY_STATIC) headway_learn(c, y, p, r->binding > 0.0, predicted);
    }
    c->ready = ready;
    return headway_command(c, r);
}
