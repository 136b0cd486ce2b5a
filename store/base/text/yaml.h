/* yaml.h - the only door to libyaml: a YAML document read into the JSON value tree.
 *
 * The core schema's scalars (plain null, true/false, integers, reals; all else strings; quoted
 * scalars are always strings). Anchors and aliases are expanded within a limit; duplicate keys,
 * several documents, non-string keys and tags are refused by line. */
#ifndef FM_BASE_YAML_H
#define FM_BASE_YAML_H

#include "store/base/text/json.h"

FM_BEGIN_DECLS
FM_CHECKED fm_status fm_yaml_parse(fm_json **out, fm_span text, const char *what);
FM_END_DECLS
#endif
