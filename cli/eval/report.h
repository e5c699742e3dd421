// What `train eval` prints: a line per figure for one model, a table for several, or JSON.
#ifndef ZERO_CLI_EVAL_REPORT_H
#define ZERO_CLI_EVAL_REPORT_H

#include "cli/eval/model.h"

// One JSON object on one line.
enum status eval_report_json(const struct eval_result *result) MUST_CHECK;
// The loss, then each task.
enum status eval_report_lines(const struct eval_result *result) MUST_CHECK;
// A row per figure and a column per model; as many tables as it takes to stay within a width of 100.
enum status eval_report_table(const struct eval_result *results, int n) MUST_CHECK;

#endif
