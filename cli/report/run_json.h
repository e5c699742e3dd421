// A run as JSON for the page of a report (cli/report/page.js reads it).
#ifndef ZERO_CLI_REPORT_RUN_JSON_H
#define ZERO_CLI_REPORT_RUN_JSON_H

#include "base/text.h"
#include "trainer/runs/run_record.h"

// Appends the object: figures, points, memory, samples, profile, config. Text of the run is made valid UTF-8
// without control characters. What is absent becomes null or a note. STATUS_FAILED: out of memory.
enum status run_json_add(struct text *out, const struct run_record *record) MUST_CHECK;
// Appends {"section.option": "value", ...} of a parsed config.json, values as JSON text. Nothing in the
// braces for NULL.
void run_json_add_config(struct text *out, const cJSON *config);
// Appends text as a JSON string, made valid.
void run_json_add_string(struct text *out, const char *bytes, size_t n);

#endif
