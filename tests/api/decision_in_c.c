#include "tests/api/decision_in_c.h"

static int add_questions(duet_decision_request* request) {
  return duet_decision_request_add_question(request, "team", DUET_QUESTION_CHOICE, "Which?") == DUET_OK &&
         duet_decision_request_add_option(request, "team", "a", "one") == DUET_OK &&
         duet_decision_request_add_option(request, "team", "b", NULL) == DUET_OK &&
         duet_decision_request_add_question(request, "how", DUET_QUESTION_SCORE, "How?") == DUET_OK &&
         duet_decision_request_add_level(request, "how", "low") == DUET_OK &&
         duet_decision_request_add_level(request, "how", "high") == DUET_OK &&
         duet_decision_request_add_question(request, "spam", DUET_QUESTION_NOUL, "Spam?") == DUET_OK;
}

duet_decision_request* three_questions_in_c(const char* model) {
  duet_decision_request* request = duet_decision_request_new();
  if (duet_decision_request_set_model(request, model) == DUET_OK &&
      duet_decision_request_set_state(request, "I was charged \"twice\"") == DUET_OK &&
      duet_decision_request_set_priority(request, 1) == DUET_OK &&
      duet_decision_request_set_deadline(request, 60) == DUET_OK && add_questions(request))
    return request;
  duet_decision_request_free(request);
  return NULL;
}

static void print_confidence(const duet_decision* decision, size_t i, FILE* out) {
  static const char* const kMeasures[] = {"largest", "entropy", "linear", "spread", "published"};
  for (size_t m = 0; m < sizeof(kMeasures) / sizeof(kMeasures[0]); ++m) {
    double value = -1;
    const duet_code code = duet_decision_confidence(decision, i, kMeasures[m], &value);
    fprintf(out, "  %s %s %.17g\n", kMeasures[m], duet_code_name(code), value);
  }
}

void print_decision_in_c(const duet_decision* decision, FILE* out) {
  fprintf(out, "%s '%s' %lld tokens\n", duet_code_name(duet_decision_code(decision)), duet_decision_message(decision),
          (long long)duet_decision_input_tokens(decision));
  for (size_t i = 0; i < duet_decision_answer_count(decision); ++i) {
    fprintf(out, "%s: kind %d from %s, escalated %d '%s'\n", duet_decision_question(decision, i),
            (int)duet_decision_kind(decision, i), duet_decision_model(decision, i),
            duet_decision_escalated(decision, i), duet_decision_reason(decision, i));
    for (size_t k = 0; k < duet_decision_label_count(decision, i); ++k)
      fprintf(out, "  '%s' '%s' %.17g\n", duet_decision_label(decision, i, k),
              duet_decision_description(decision, i, k), duet_decision_probability(decision, i, k));
    fprintf(out, "  choice %zu score %.17g act %.17g\n", duet_decision_choice(decision, i),
            duet_decision_score(decision, i), duet_decision_act_probability(decision, i));
    print_confidence(decision, i, out);
    fprintf(out, "  state %lld of %lld tokens, %zu options\n", (long long)duet_decision_state_tokens_kept(decision, i),
            (long long)duet_decision_state_tokens(decision, i), duet_decision_distinct_options(decision, i));
  }
}
