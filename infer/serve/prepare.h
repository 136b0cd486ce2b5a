/* prepare.h - threads that make prompts: messages through templates, texts to tokens.
 *
 * A template is a program that came with a model, and a prompt may have megabytes: neither may
 * occupy the threads that speak HTTP, nor the engine's. A job is here between its stages FMI_FOUND
 * and FMI_RUN, with its connection suspended. fmi_server_admit bounds how many wait. A thread takes
 * the oldest job of the models that have the fewest threads at work, no model has all of them. */
#ifndef FM_INFER_SERVE_PREPARE_H
#define FM_INFER_SERVE_PREPARE_H

#include "infer/serve/internal.h"

FM_BEGIN_DECLS

FM_CHECKED fm_status fmi_prepare_start(fm_server *s);
/* Engine thread: j has its model pinned; takes a reference of its own. j comes back in the server's
 * queue at FMI_RUN, or goes to the HTTP side with a fault: at once after fmi_prepare_stop. */
void fmi_prepare_put(fm_server *s, fmi_job *j);
/* Ends waiting and running jobs with 503, and the threads; soon, since templates are interrupted.
 * No job is taken any more. A second call does nothing. */
void fmi_prepare_stop(fm_server *s);
void fmi_prepare_free(fm_server *s); /* stopped, or never started */

FM_END_DECLS
#endif
