#ifndef DUET_EXPORT_H_
#define DUET_EXPORT_H_

/* Marks what the shared library shows; everything else is hidden. */
#if defined(_WIN32)
#define DUET_API
#else
#define DUET_API __attribute__((visibility("default")))
#endif

#endif /* DUET_EXPORT_H_ */
