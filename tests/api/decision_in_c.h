#ifndef DUET_TESTS_API_DECISION_IN_C_H_
#define DUET_TESTS_API_DECISION_IN_C_H_

#include <stdio.h>

#include "duet/c_api.h"

/* What c_decide_test.cpp does in C: these functions are compiled as C11. */
#ifdef __cplusplus
extern "C" {
#endif

/* A question of each kind, by calls; NULL when one of them fails. */
duet_decision_request* three_questions_in_c(const char* model);

/* Everything that a decision's getters say, a line a fact, but for its seconds. */
void print_decision_in_c(const duet_decision* decision, FILE* out);

#ifdef __cplusplus
}
#endif

#endif /* DUET_TESTS_API_DECISION_IN_C_H_ */
