/* prepare.h - threads that make prompts: messages through templates, texts to tokens.
 *
 * A template is a program that came with a model, and a prompt may have megabytes: neither may keep
 * the threads that speak HTTP, nor the engine's. A job is here between the engine's two hands on
 * it, found and run, its connection suspended all the while. How many wait is bounded by
 * fmi_server_admit. Whom a thread takes next: the oldest of the models that have the fewest threads
 * at work, and no model has all of them. */
#ifndef FM_INFER_SERVE_PREPARE_H
#define FM_INFER_SERVE_PREPARE_H

#include "infer/serve/internal.h"

FM_BEGIN_DECLS

FM_CHECKED fm_status fmi_prepare_start(fm_server *s);
/* Engine thread: j has its model pinned; takes a reference of its own. j comes back in the server's
 * queue at FMI_RUN, or goes to the HTTP side with a fault: at once where nobody prepares any more.
 */
void fmi_prepare_put(fm_server *s, fmi_job *j);
/* What waits or runs ends with 503, and the threads with it; soon, since templates are interrupted.
 * Nothing is taken any more. A second call does nothing. */
void fmi_prepare_stop(fm_server *s);
void fmi_prepare_free(fm_server *s); /* stopped, or never started */

FM_END_DECLS
#endif
