/* commands.h - one function per command: argv[0] is the command's name; it returns the exit code of
 * the program. */
#ifndef FM_CLI_COMMANDS_H
#define FM_CLI_COMMANDS_H

#include "cli/base/context.h"

int cmd_init(cli *c, int argc, char **argv);
int cmd_import(cli *c, int argc, char **argv);
int cmd_clone(cli *c, int argc, char **argv);
int cmd_remote(cli *c, int argc, char **argv);
int cmd_ls_remote(cli *c, int argc, char **argv);
int cmd_fetch(cli *c, int argc, char **argv);
int cmd_pull(cli *c, int argc, char **argv);
int cmd_push(cli *c, int argc, char **argv);
int cmd_upload_pack(cli *c, int argc, char **argv);
int cmd_receive_pack(cli *c, int argc, char **argv);
int cmd_export(cli *c, int argc, char **argv);
int cmd_log(cli *c, int argc, char **argv);
int cmd_graph(cli *c, int argc, char **argv);
int cmd_show(cli *c, int argc, char **argv);
int cmd_diff(cli *c, int argc, char **argv);
int cmd_ls(cli *c, int argc, char **argv);
int cmd_cat(cli *c, int argc, char **argv);
int cmd_stats(cli *c, int argc, char **argv);
int cmd_branch(cli *c, int argc, char **argv);
int cmd_tag(cli *c, int argc, char **argv);
int cmd_derive(cli *c, int argc, char **argv);
int cmd_merge(cli *c, int argc, char **argv);
int cmd_replay(cli *c, int argc, char **argv);
int cmd_suite(cli *c, int argc, char **argv);
int cmd_results(cli *c, int argc, char **argv);
int cmd_test(cli *c, int argc, char **argv);
int cmd_blame(cli *c, int argc, char **argv);
int cmd_run(cli *c, int argc, char **argv);
int cmd_serve(cli *c, int argc, char **argv);
int cmd_tokenize(cli *c, int argc, char **argv);
int cmd_score(cli *c, int argc, char **argv);
int cmd_embed(cli *c, int argc, char **argv);
int cmd_classify(cli *c, int argc, char **argv);
int cmd_fsck(cli *c, int argc, char **argv);
int cmd_gc(cli *c, int argc, char **argv);
int cmd_repack(cli *c, int argc, char **argv);
int cmd_devices(cli *c, int argc, char **argv);

#endif
