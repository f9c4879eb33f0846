#ifndef DUET_C_API_H_
#define DUET_C_API_H_

#include "duet/export.h"

#endif /* DUET_C_API_H_ */
