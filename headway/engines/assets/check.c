/* Replays recorded steps through the generated law: check golden.csv [passes | exact]. Exit 0 if every budget is equal and
 * every state within 1e-12, with exact bit for bit; with passes, the time of one update is measured over so many replays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "headway_law.h"

typedef struct { headway_reading reading; long budget; double state[4]; } row;

int main(int count, char **words) {
    static char line[4096];
    size_t rows = 0, room = 0;
    row *all = NULL;
    headway_controller c;
    FILE *file = count > 1 ? fopen(words[1], "r") : NULL;
    if (!file || !fgets(line, sizeof line, file)) return fputs("check golden.csv [passes | exact]: no such file\n", stderr), 2;
    while (fgets(line, sizeof line, file)) {
        double values[17];
        char *at = line;
        int found = 0;
        for (; found < 15 && *at && *at != '\n'; ++found) {
            values[found] = strtod(at, &at);
            if (*at == ',') ++at;
        }
        if (found < 15) return fprintf(stderr, "row %zu has %d values, expected 15\n", rows, found), 2;
        if (rows == room && !(all = realloc(all, (room = 2 * room + 1024) * sizeof *all))) return 2;
        row *r = all + rows++;
        memcpy(&r->reading, values, 10 * sizeof *values);
        r->reading.step_number = r->reading.clock_s = NAN;
        r->budget = (long)values[10];
        memcpy(r->state, values + 11, sizeof r->state);
    }
    const double near = count > 2 && !strcmp(words[2], "exact") ? 0.0 : 1e-12;
    headway_reset(&c);
    for (size_t k = 0; k < rows; ++k) {
        long budget = headway_update(&c, &all[k].reading);
        if (budget != all[k].budget) return printf("row %zu: token budget %ld, expected %ld\n", k, budget, all[k].budget), 1;
        for (int i = 0; i < 4; ++i)
            if (!(fabs(c.state[i] - all[k].state[i]) <= near * fmax(1.0, fabs(all[k].state[i]))))
                return printf("row %zu: state %d is %a, expected %a\n", k, i, c.state[i], all[k].state[i]), 1;
    }
    printf("%zu rows agree\n", rows);
    long passes = count > 2 ? atol(words[2]) : 0, sum = 0;
    if (passes > 0 && rows > 0) {
        clock_t start = clock();
        for (long i = 0; i < passes; ++i) {
            headway_reset(&c);
            for (size_t k = 0; k < rows; ++k) sum += headway_update(&c, &all[k].reading);
        }
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        printf("%.1f ns an update (checksum %ld)\n", 1e9 * seconds / ((double)passes * (double)rows), sum);
    }
    return rows ? 0 : 1;
}
