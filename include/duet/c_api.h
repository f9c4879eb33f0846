#ifndef DUET_C_API_H_
#define DUET_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "duet/export.h"

/*
 * Duet in C11: the engine of duet/engine.h behind opaque handles.
 *
 *     duet_options *options = duet_options_new();
 *     duet_options_add_model(options, "laya", "models/base");
 *     duet_engine *engine = NULL;
 *     if (duet_engine_open(options, &engine) != DUET_OK) fputs(duet_last_message(), stderr);
 *
 * Failures: every function that can fail returns a duet_code; duet_last_message() then holds the sentence. No call ends
 *   the process, and no C++ exception leaves the library.
 * Text: UTF-8, ending in NUL. Strings given in are copied. Strings handed out as const char* belong to their handle and
 *   live as long as it; those handed out as char* are freed with duet_string_free().
 * Threads: an engine may be used from any number of threads. An options, request, rules, answer or decision handle
 *   belongs to one thread at a time.
 * Units: bytes unless a name says _tokens; seconds.
 *
 * "Stable" parts keep their meaning and their binary form within a major version. "Unstable" ones may change in any
 * release.
 */

/* NOLINTBEGIN(readability-identifier-naming): C names. */
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------ Stable: codes ------------------------------------------------ */

/* As duet::Code in duet/error.h. */
typedef enum duet_code {
  DUET_OK = 0,
  DUET_INVALID_ARGUMENT = 1, /* A request, option or handle that makes no sense. */
  DUET_NOT_FOUND = 2,        /* A file, folder, model or adapter that is not there. */
  DUET_BAD_FILE = 3,         /* A file whose content contradicts its format or the model. */
  DUET_UNSUPPORTED = 4,      /* Well-formed, but Duet does not do it. */
  DUET_NO_ROOM = 5,          /* Does not fit the budget, the page pool or the context. */
  DUET_NON_FINITE = 6,       /* NaN or infinity appeared in a model's numbers. */
  DUET_CANCELLED = 7,
  DUET_DEADLINE = 8,
  DUET_DEVICE = 9,   /* The driver or the card failed. */
  DUET_INTERNAL = 10 /* Duet's own mistake. */
} duet_code;

/* "invalid_argument", ... */
DUET_API const char* duet_code_name(duet_code code);

/* What went wrong in this thread's last call that failed; "" before any did. Valid until the thread's next call. */
DUET_API const char* duet_last_message(void);

/* "0.1.0" */
DUET_API const char* duet_version(void);

DUET_API void duet_string_free(char* text); /* NULL is allowed, as for every _free. */

/* ----------------------------------------------- Stable: options ----------------------------------------------- */

typedef enum duet_device { DUET_DEVICE_AUTOMATIC = 0, DUET_DEVICE_HOST = 1, DUET_DEVICE_CUDA = 2 } duet_device;

typedef enum duet_kv_policy { DUET_KV_KEEP = 0, DUET_KV_CLEAR = 1 } duet_kv_policy;

typedef enum duet_kv_type {
  DUET_KV_TYPE_AUTOMATIC = 0,
  DUET_KV_TYPE_F32 = 1,
  DUET_KV_TYPE_F16 = 2,
  DUET_KV_TYPE_BF16 = 3,
  DUET_KV_TYPE_INT8 = 4
} duet_kv_type;

typedef enum duet_weight_type {
  DUET_WEIGHT_AS_STORED = 0,
  DUET_WEIGHT_F32 = 1,
  DUET_WEIGHT_F16 = 2,
  DUET_WEIGHT_BF16 = 3,
  DUET_WEIGHT_INT8 = 4,
  DUET_WEIGHT_NF4 = 5,
  DUET_WEIGHT_FP4 = 6
} duet_weight_type;

typedef struct duet_options duet_options;

DUET_API duet_options* duet_options_new(void); /* NULL when memory is out. */
DUET_API void duet_options_free(duet_options* options);

/* A Hugging Face folder or packed file. Models of the same base share its weights. */
DUET_API duet_code duet_options_add_model(duet_options* options, const char* name, const char* path);
/* A PEFT folder for a model added before; a model's first adapter is its default. scale 1: as trained. */
DUET_API duet_code duet_options_add_adapter(duet_options* options, const char* model, const char* name,
                                            const char* path, double scale);
/* How the model's weights are held. block_size: 64 unless you know better; double_quant: 0 or 1. */
DUET_API duet_code duet_options_set_weights(duet_options* options, const char* model, duet_weight_type linear,
                                            duet_weight_type head, duet_weight_type embedding, int block_size,
                                            int double_quant);
/* A family's name ("chatml", "llama3", ...) in place of the checkpoint's own template. */
DUET_API duet_code duet_options_set_chat_template(duet_options* options, const char* model, const char* family);
/* Room for adapters loaded later: how many at one time, and their rank. */
DUET_API duet_code duet_options_set_adapter_room(duet_options* options, const char* model, int slots, int rank);

DUET_API duet_code duet_options_set_device(duet_options* options, duet_device device);
DUET_API duet_code duet_options_set_budget(duet_options* options, uint64_t bytes); /* 6 GiB unless set. */
DUET_API duet_code duet_options_set_kv_tokens(duet_options* options, int64_t tokens);
DUET_API duet_code duet_options_set_kv_policy(duet_options* options, duet_kv_policy policy);
DUET_API duet_code duet_options_set_kv_type(duet_options* options, duet_kv_type type);
DUET_API duet_code duet_options_set_max_sequences(duet_options* options, int count);
DUET_API duet_code duet_options_set_threads(duet_options* options, int count); /* 0: all cores. */

/* How far loading has come; called during duet_engine_open, one call at a time. */
typedef void (*duet_load_callback)(const char* model, uint64_t bytes_done, uint64_t bytes_total, void* user);
DUET_API duet_code duet_options_set_load_callback(duet_options* options, duet_load_callback callback, void* user);

/* ----------------------------------------------- Stable: requests ---------------------------------------------- */

typedef enum duet_length_policy {
  DUET_LENGTH_REJECT = 0,
  DUET_LENGTH_TRUNCATE = 1,
  DUET_LENGTH_SEGMENT = 2
} duet_length_policy;

typedef struct duet_request duet_request;

DUET_API duet_request* duet_request_new(void); /* NULL when memory is out. */
DUET_API void duet_request_free(duet_request* request);

DUET_API duet_code duet_request_set_model(duet_request* request, const char* model);
/* "none": the base alone. scale multiplies the one given when it was loaded. */
DUET_API duet_code duet_request_set_adapter(duet_request* request, const char* adapter, double scale);

/* The text: messages, or a raw prompt, or ids; exactly one of the three. */
DUET_API duet_code duet_request_add_message(duet_request* request, const char* role, const char* content);
DUET_API duet_code duet_request_set_prompt(duet_request* request, const char* text);
DUET_API duet_code duet_request_set_prompt_ids(duet_request* request, const int32_t* ids, size_t count);

DUET_API duet_code duet_request_set_max_tokens(duet_request* request, int max_tokens); /* 256 unless set. */
DUET_API duet_code duet_request_set_length_limit(duet_request* request, int max_length_tokens,
                                                 duet_length_policy policy);
DUET_API duet_code duet_request_set_temperature(duet_request* request, double temperature); /* 0: greedy. */
DUET_API duet_code duet_request_set_top_k(duet_request* request, int top_k);                /* 0: off. */
DUET_API duet_code duet_request_set_top_p(duet_request* request, double top_p);             /* 1: off. */
DUET_API duet_code duet_request_set_min_p(duet_request* request, double min_p);             /* 0: off. */
DUET_API duet_code duet_request_set_repetition_penalty(duet_request* request, double penalty);
DUET_API duet_code duet_request_add_logit_bias(duet_request* request, int32_t id, float bias);
DUET_API duet_code duet_request_set_seed(duet_request* request, uint64_t seed);
/* The answer ends before the match that is complete first as the text is generated; of several complete at the same
   byte, before the longest. Not empty. */
DUET_API duet_code duet_request_add_stop(duet_request* request, const char* stop);
DUET_API duet_code duet_request_set_logprobs(duet_request* request, int count); /* 0 to 20. */
DUET_API duet_code duet_request_set_priority(duet_request* request, int priority);
DUET_API duet_code duet_request_set_deadline(duet_request* request, double seconds); /* 0: none. */

/* ------------------------------------------------ Stable: engine ----------------------------------------------- */

typedef struct duet_engine duet_engine;
typedef struct duet_answer duet_answer;
typedef uint64_t duet_ticket;

/* Plans, refuses what does not fit, loads. *engine is NULL on failure. */
DUET_API duet_code duet_engine_open(const duet_options* options, duet_engine** engine);
/* Cancels what is in progress. No other thread may be inside a call on this engine. */
DUET_API void duet_engine_close(duet_engine* engine);
/* The plan as a table for people, without loading anything. */
DUET_API duet_code duet_plan(const duet_options* options, char** table);

/* Whole characters as they are generated; `text` is not NUL-terminated. Called on the engine's own thread (by
 * duet_engine_route also on the caller's): return quickly and do not call the engine. */
typedef void (*duet_text_callback)(const char* text, size_t bytes, void* user);

/* Queues a request; `callback` may be NULL. A bad request gets a ticket too: its answer says what was wrong. */
DUET_API duet_code duet_engine_submit(duet_engine* engine, const duet_request* request, duet_text_callback callback,
                                      void* user, duet_ticket* ticket);
/* Blocks. Each ticket is waited for once. Returns the answer's code; *answer is set whatever it is, unless an argument
 * was NULL, and is freed with duet_answer_free. */
DUET_API duet_code duet_engine_wait(duet_engine* engine, duet_ticket ticket, duet_answer** answer);
/* Takes effect within one step; *cancelled (may be NULL) is 0 when the request had already ended. */
DUET_API duet_code duet_engine_cancel(duet_engine* engine, duet_ticket ticket, int* cancelled);
DUET_API duet_code duet_engine_cancel_all(duet_engine* engine);
/* Submit and wait. */
DUET_API duet_code duet_engine_run(duet_engine* engine, const duet_request* request, duet_text_callback callback,
                                   void* user, duet_answer** answer);

/* ------------------------------------------------ Stable: answers ---------------------------------------------- */

typedef enum duet_finish {
  DUET_FINISH_NONE = 0,
  DUET_FINISH_STOP_TOKEN = 1,
  DUET_FINISH_STOP_STRING = 2,
  DUET_FINISH_LENGTH = 3,
  DUET_FINISH_CANCELLED = 4,
  DUET_FINISH_DEADLINE = 5,
  DUET_FINISH_ERROR = 6
} duet_finish;

typedef struct duet_timings { /* Seconds. */
  double queued;
  double prefill;
  double first_token; /* From submission. */
  double decode;
  double total;
} duet_timings;

DUET_API void duet_answer_free(duet_answer* answer);

/* Getters take a valid handle; for NULL they give DUET_INVALID_ARGUMENT, "" or 0. */
DUET_API duet_code duet_answer_code(const duet_answer* answer);
DUET_API const char* duet_answer_message(const duet_answer* answer); /* "" when the code is DUET_OK. */
DUET_API const char* duet_answer_text(const duet_answer* answer);
DUET_API size_t duet_answer_text_bytes(const duet_answer* answer); /* A text may hold NUL. */
DUET_API const char* duet_answer_model(const duet_answer* answer);
DUET_API const char* duet_answer_adapter(const duet_answer* answer);
DUET_API duet_finish duet_answer_finish(const duet_answer* answer);
DUET_API size_t duet_answer_prompt_token_count(const duet_answer* answer);
DUET_API int32_t duet_answer_prompt_token(const duet_answer* answer, size_t index); /* -1 past the end. */
DUET_API size_t duet_answer_cached_token_count(const duet_answer* answer);          /* Of the prompt. */
DUET_API size_t duet_answer_token_count(const duet_answer* answer);                 /* An end token included. */
DUET_API int32_t duet_answer_token(const duet_answer* answer, size_t index);        /* -1 past the end. */
DUET_API float duet_answer_token_logprob(const duet_answer* answer, size_t index);  /* Natural logarithm. */
DUET_API duet_timings duet_answer_timings(const duet_answer* answer);

/* The best alternatives of a generated token, best first (duet_request_set_logprobs). */
DUET_API size_t duet_answer_best_count(const duet_answer* answer, size_t index);
DUET_API duet_code duet_answer_best(const duet_answer* answer, size_t index, size_t rank, int32_t* id, float* logprob);

/* ----------------------------------------------- Unstable: routing --------------------------------------------- */

typedef struct duet_rules duet_rules;

DUET_API duet_rules* duet_rules_new(void); /* The defaults of duet::RouteRules. */
DUET_API duet_code duet_rules_read(const char* path, duet_rules** rules);
DUET_API duet_code duet_rules_set_models(duet_rules* rules, const char* fast, const char* deep);
DUET_API duet_code duet_rules_set_threshold(duet_rules* rules, double threshold);
DUET_API duet_code duet_rules_set_max_tokens(duet_rules* rules, int fast, int deep); /* 64 and 512 unless set. */
DUET_API void duet_rules_free(duet_rules* rules);

/* The fast model answers, the deep one takes over when the rules say so. As duet_engine_run; rules NULL: defaults. */
DUET_API duet_code duet_engine_route(duet_engine* engine, const duet_request* request, const duet_rules* rules,
                                     duet_text_callback callback, void* user, duet_answer** answer);

/* Of an answer that was routed: whether the deep model gave it, why, and what the fast one said (owned by `answer`;
 * NULL when the answer was not routed). */
DUET_API int duet_answer_escalated(const duet_answer* answer);
DUET_API double duet_answer_confidence(const duet_answer* answer);
DUET_API const char* duet_answer_reason(const duet_answer* answer);
DUET_API const duet_answer* duet_answer_fast(const duet_answer* answer);

/* ---------------------------------------------- Unstable: decisions -------------------------------------------- */

/*
 * Typed questions about a state, as in duet/decide.h:
 *
 *     duet_decision_request *request = duet_decision_request_new();
 *     duet_decision_request_set_model(request, "laya");
 *     duet_decision_request_set_state(request, "I was charged twice for invoice 4411");
 *     duet_decision_request_add_question(request, "team", DUET_QUESTION_CHOICE, "Which team should answer?");
 *     duet_decision_request_add_option(request, "team", "billing", "invoices, refunds");
 *     duet_decision_request_add_option(request, "team", "technical", "bugs, outages");
 *     duet_decision *decision = NULL;
 *     if (duet_engine_decide(engine, request, &decision) == DUET_OK)
 *       puts(duet_decision_label(decision, 0, duet_decision_choice(decision, 0)));
 */

/* As duet::QuestionKind. */
typedef enum duet_question_kind {
  DUET_QUESTION_CHOICE = 0, /* Which one of the options. */
  DUET_QUESTION_SCORE = 1,  /* Which level, the lowest first. */
  DUET_QUESTION_NOUL = 2    /* Whether a statement is true. */
} duet_question_kind;

typedef struct duet_decision_request duet_decision_request;

DUET_API duet_decision_request* duet_decision_request_new(void); /* NULL when memory is out. */
DUET_API void duet_decision_request_free(duet_decision_request* request);

/* Who is asked by duet_engine_decide. */
DUET_API duet_code duet_decision_request_set_model(duet_decision_request* request, const char* model);

/* State and questions in the System One shape, or by the functions below; not both. */
DUET_API duet_code duet_decision_request_set_json(duet_decision_request* request, const char* json);
DUET_API duet_code duet_decision_request_set_state(duet_decision_request* request, const char* state);
/* Names are unique within a request. */
DUET_API duet_code duet_decision_request_add_question(duet_decision_request* request, const char* name,
                                                      duet_question_kind kind, const char* instructions);
/* For a choice added before; `description` may be NULL. 1 to 255, in the order shown. */
DUET_API duet_code duet_decision_request_add_option(duet_decision_request* request, const char* question,
                                                    const char* label, const char* description);
/* For a score added before. 1 to 255, the lowest first; its number, "0" for the first, is its label. */
DUET_API duet_code duet_decision_request_add_level(duet_decision_request* request, const char* question,
                                                   const char* text);

DUET_API duet_code duet_decision_request_set_priority(duet_decision_request* request, int priority);
DUET_API duet_code duet_decision_request_set_deadline(duet_decision_request* request, double seconds); /* 0: none. */

typedef struct duet_decision_rules duet_decision_rules;

DUET_API duet_decision_rules* duet_decision_rules_new(void); /* The defaults of duet::DecisionRules. */
DUET_API duet_code duet_decision_rules_set_models(duet_decision_rules* rules, const char* fast, const char* deep);
/* "largest" unless set; the others are entropy, linear, spread and published (duet::DecisionConfidence). */
DUET_API duet_code duet_decision_rules_set_measure(duet_decision_rules* rules, const char* measure);
/* Below it the deep model is asked; 0.7 for each kind unless set. 0: never, above 1: always. */
DUET_API duet_code duet_decision_rules_set_threshold(duet_decision_rules* rules, duet_question_kind kind,
                                                     double threshold);
DUET_API void duet_decision_rules_free(duet_decision_rules* rules);

typedef struct duet_decision duet_decision;

/* Blocks. Returns the decision's code; *decision is set whatever it is, unless an argument was NULL, and is freed with
 * duet_decision_free. */
DUET_API duet_code duet_engine_decide(duet_engine* engine, const duet_decision_request* request,
                                      duet_decision** decision);
/* The fast model answers every question; those of which it is not sure enough go to the deep one. rules NULL: defaults.
 */
DUET_API duet_code duet_engine_decide_routed(duet_engine* engine, const duet_decision_request* request,
                                             const duet_decision_rules* rules, duet_decision** decision);

DUET_API void duet_decision_free(duet_decision* decision);

/* Getters take a valid handle; for NULL and past the end they give DUET_INVALID_ARGUMENT, "" or 0. */
DUET_API duet_code duet_decision_code(const duet_decision* decision);
DUET_API const char* duet_decision_message(const duet_decision* decision);  /* "" when the code is DUET_OK. */
DUET_API size_t duet_decision_answer_count(const duet_decision* decision);  /* 0 when it failed. */
DUET_API int64_t duet_decision_input_tokens(const duet_decision* decision); /* That went through models. */
DUET_API double duet_decision_seconds(const duet_decision* decision);       /* From request to answer. */

/* Of the answer to question `index`, in the order of the request. */
DUET_API const char* duet_decision_question(const duet_decision* decision, size_t index);
DUET_API duet_question_kind duet_decision_kind(const duet_decision* decision, size_t index);
/* A choice's labels; of a score "0", "1", ...; of a noul "false", "true". */
DUET_API size_t duet_decision_label_count(const duet_decision* decision, size_t index);
DUET_API const char* duet_decision_label(const duet_decision* decision, size_t index, size_t label);
DUET_API const char* duet_decision_description(const duet_decision* decision, size_t index, size_t label);
DUET_API double duet_decision_probability(const duet_decision* decision, size_t index, size_t label);
DUET_API size_t duet_decision_choice(const duet_decision* decision, size_t index); /* The first most probable label. */
DUET_API double duet_decision_score(const duet_decision* decision, size_t index);  /* Mean level; of a noul P(true). */
/* A measure by its name, as for duet_decision_rules_set_measure. */
DUET_API duet_code duet_decision_confidence(const duet_decision* decision, size_t index, const char* measure,
                                            double* value);
/* Of Laya's act head; it says next to nothing. */
DUET_API double duet_decision_act_probability(const duet_decision* decision, size_t index);
DUET_API const char* duet_decision_model(const duet_decision* decision, size_t index);  /* Which gave it. */
DUET_API int duet_decision_escalated(const duet_decision* decision, size_t index);      /* Another was asked first. */
DUET_API const char* duet_decision_reason(const duet_decision* decision, size_t index); /* "" when not routed. */
/* The whole state as that model reads it; fewer kept: it was cut to fit. */
DUET_API int64_t duet_decision_state_tokens(const duet_decision* decision, size_t index);
DUET_API int64_t duet_decision_state_tokens_kept(const duet_decision* decision, size_t index);
/* Fewer than labels: options that were cut to the same text. */
DUET_API size_t duet_decision_distinct_options(const duet_decision* decision, size_t index);

/* --------------------------------- Unstable: adapters, tokenizers, what is going on ---------------------------- */

DUET_API duet_code duet_engine_load_adapter(duet_engine* engine, const char* model, const char* name, const char* path,
                                            double scale);
DUET_API duet_code duet_engine_drop_adapter(duet_engine* engine, const char* model, const char* name);

/* Writes up to `capacity` ids to `ids`; *count is how many there are. */
DUET_API duet_code duet_engine_tokenize(const duet_engine* engine, const char* model, const char* text,
                                        int parse_special, int32_t* ids, size_t capacity, size_t* count);
DUET_API duet_code duet_engine_detokenize(const duet_engine* engine, const char* model, const int32_t* ids,
                                          size_t count, char** text);

typedef struct duet_counters { /* As duet::Counters. New members are added at the end. */
  uint64_t requests, finished, failed, cancelled;
  uint64_t switches, steps;
  uint64_t prompt_tokens, cached_tokens, generated_tokens;
  uint64_t evicted_pages, recomputed_tokens;
  int64_t total_pages, free_pages, cached_pages;
  int32_t active_sequences, waiting, most_passed_over;
  double switch_seconds, switch_p50, switch_p99;
} duet_counters;

/* Fills the first `size` bytes: pass sizeof(duet_counters). */
DUET_API duet_code duet_engine_counters(const duet_engine* engine, duet_counters* counters, size_t size);

DUET_API duet_code duet_engine_plan_table(const duet_engine* engine, char** text);
DUET_API duet_code duet_engine_load_report(const duet_engine* engine, char** text);
DUET_API duet_code duet_engine_device_name(const duet_engine* engine, char** text);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming) */

#endif /* DUET_C_API_H_ */
