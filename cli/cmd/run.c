/* run.c - fmstore run: prints one answer, or leads a conversation line by line. */
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "infer/prompt.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

typedef struct run_opts {
    const char *rev, *prompt;
    bool raw;
    uint64_t max_new, seed, top_k;
    double temperature, top_p;
} run_opts;

typedef struct answer {
    fm_buf text;
    bool failed;
} answer;

static bool print_event(void *ctx, const fm_gen_event *ev)
{
    answer *a = ctx;
    fwrite(ev->text ? ev->text : "", 1, ev->text_len, stdout);
    fflush(stdout);
    fm_buf_append(&a->text, ev->text, ev->text_len);
    if (ev->finish && strcmp(ev->finish, "error") == 0) {
        a->failed = true;
        fm_ignore(fm_fail(FM_EINVAL, "%s", ev->error), "returned by the caller");
    }
    return !cli_interrupted;
}

static fm_status generate(cli *c, const run_opts *o, fm_model *m, const fm_ids *ids, answer *a)
{
    fm_scheduler *s = NULL;
    fm_gen_request req = {.model = m,
                          .prompt = ids->id,
                          .prompt_len = ids->count,
                          .max_new = (uint32_t)o->max_new,
                          .on_event = print_event,
                          .ctx = a};
    bool busy = true;
    fm_sample_defaults(&req.sampling);
    req.sampling.temperature = (float)o->temperature;
    req.sampling.top_p = (float)o->top_p;
    req.sampling.top_k = (uint32_t)o->top_k;
    req.sampling.seed = o->seed;
    fm_status rc = fm_scheduler_new(&s, c->engine, 1);
    FM_THEN(rc, fm_scheduler_add(s, &req, NULL));
    while (rc == FM_OK && busy)
        rc = fm_scheduler_step(s, &busy);
    fm_scheduler_free(s);
    if (a->text.len || (rc == FM_OK && !a->failed)) /* no empty line before an error */
        putchar('\n');
    if (cli_interrupted) /* what is printed is not the whole answer */
        return fm_go_on();
    return rc == FM_OK && a->failed ? FM_EINVAL : rc;
}

static fm_status push_message(fm_json *messages, const char *role, fm_span text)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "role", fm_json_new_str(role));
    fm_json_put(&rc, o, "content", fm_json_new_strn((const char *)text.data, text.len));
    fm_json_push_to(&rc, messages, o);
    return rc;
}

/* messages NULL: continues the text; else answers it as the next message of a chat. */
static fm_status answer_one(cli *c, const run_opts *o, fm_model *m, fm_json *messages, fm_span text)
{
    fm_ids ids = {0};
    answer a = {0};
    fm_status rc = FM_OK;
    fm_buf_init(&a.text, 0);
    if (messages) {
        rc = push_message(messages, "user", text);
        FM_THEN(rc, fm_prompt_chat(&ids, m, messages, NULL));
    } else {
        rc = fm_prompt_text(&ids, m, text);
    }
    FM_THEN(rc, generate(c, o, m, &ids, &a));
    if (rc == FM_OK && messages)
        rc = push_message(messages, "assistant", fm_buf_span(&a.text));
    fm_buf_release(&a.text);
    fm_ids_release(&ids);
    return rc;
}

static fm_status converse(cli *c, const run_opts *o, fm_model *m, fm_json *messages)
{
    bool tty = isatty(STDIN_FILENO) != 0, end = false;
    fm_buf line;
    fm_buf_init(&line, 0);
    fm_status rc = FM_OK;
    while (rc == FM_OK && !cli_interrupted) {
        if (tty)
            fputs("> ", stderr);
        rc = cli_read_stdin_line(&line, &end);
        if (rc == FM_OK && end)
            break;
        if (rc == FM_OK && line.len)
            rc = answer_one(c, o, m, messages, fm_buf_span(&line));
    }
    if (tty) /* the shell's prompt gets a line of its own */
        fputc('\n', stderr);
    else if (rc == FM_OK) /* a script's last lines may be unanswered */
        rc = fm_go_on();
    fm_buf_release(&line);
    return rc;
}

int cmd_run(cli *c, int argc, char **argv)
{
    run_opts o = {.max_new = 256, .top_p = 1};
    size_t n;
    const opt_spec table[] = {
        {'p', "prompt", OPT_STR, "TEXT", "answer this; without it, lines of standard input",
         &o.prompt},
        {0, "raw", OPT_FLAG, NULL, "continue the text itself; no chat template", &o.raw},
        {'n', "max-tokens", OPT_UINT, "N", "at most N new tokens (256)", &o.max_new},
        {0, "temperature", OPT_REAL, "T", "0 = greedy (default)", &o.temperature},
        {0, "top-p", OPT_REAL, "P", "nucleus, 1 = off", &o.top_p},
        {0, "top-k", OPT_UINT, "K", "0 = off", &o.top_k},
        {0, "seed", OPT_UINT, "S", "of the sampling", &o.seed},
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    c->mode = CLI_ANSWER_MODE;
    c->keep_packed = true;
    int code = cli_parse(c, argc, argv, table, &o.rev, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (o.max_new == 0 || o.max_new > 1000000)
        return cli_usage_error(c, "-n wants 1 to 1,000,000");
    if (o.top_k > UINT32_MAX)
        return cli_usage_error(c, "--top-k wants at most %u", UINT32_MAX);
    fm_oid oid;
    fm_model *m = NULL;
    fm_json *messages = NULL;
    cli_catch_interrupts(true);
    fm_status rc = fm_ops_load_rev(c, o.rev, &oid, &m);
    if (rc == FM_OK && !o.raw && fm_model_chat_template(m) && !(messages = fm_json_new_array()))
        rc = FM_ENOMEM;
    if (rc == FM_OK && o.prompt)
        rc = answer_one(c, &o, m, messages, fm_span_str(o.prompt));
    else if (rc == FM_OK)
        rc = converse(c, &o, m, messages);
    fm_json_free(messages);
    fm_model_close(m);
    return cli_exit(rc);
}
