#!/bin/bash
# layers.sh ROOT - who may include whom, which calls stay behind their door, and a README per top folder.
#
# It reads text, not programs: comments and string literals are blanked first, then a call is a name
# that is followed by '(' and is no member and no part of a longer name. Every breach is printed as
# file:line; the exit code is 1 if there was any.
set -u
root=${1:-$(dirname "$0")/..}
cd "$root" || exit 1

LC_ALL=C find store lineage infer train testing remote cli -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | LC_ALL=C sort |
perl -e '
use strict;
use warnings;

# From the first folder of a path to the folders that it may include from.
my %may = (
    store => [qw(store)],
    lineage => [qw(lineage store)],
    infer => [qw(infer store)],
    train => [qw(train infer store)],
    testing => [qw(testing infer store)],
    remote => [qw(remote lineage store)],
    cli => [qw(cli remote lineage train testing infer store)],
);
# What cli may see of the other folders: the public headers and what these include.
my $public = qr{^(?:store/(?:base/(?:\w+/)?\w+|store|tensor|tree|source|merge)|lineage/lineage|remote/\w+
    |infer/(?:infer|arch|chat|comm|comm_launch|parallel_plan|sampler|tokenizer|prompt|trace|serve/\w+)|train/(?:train|attribution)
    |testing/(?:testing|stats|report|policy|blame|interpolate))\.h$}x;
# Foreign headers and the only files that may include them.
my @foreign = (
    [qr{^git2(?:/|\.h)}, qr{^lineage/}],
    [qr{^sqlite3\.h$}, qr{^(?:store|lineage)/}],
    [qr{^zlib\.h$}, qr{^lineage/pack_scan\.c$}],
    [qr{^zstd\w*\.h$}, qr{^store/entropy/stream\.c$}],
    [qr{^jansson\.h$}, qr{^store/base/text/json\.c$}],
    [qr{^yaml\.h$}, qr{^store/base/text/yaml\.c$}],
    [qr{^openssl/}, qr{^store/base/math/hash\.c$}],
    [qr{^(?:dnnl|oneapi/dnnl|cuda|cublas|nccl|nvrtc|mpi)}, qr{^infer/}],
    [qr{^microhttpd\.h$}, qr{^infer/serve/mhd\.h$}],
    [qr{^curl/}, qr{^remote/http/curl\.h$}],
    [qr{^pcre2\.h$}, qr{^store/base/text/regex\.c$}],
    [qr{^utf8proc\.h$}, qr{^infer/}],
    [qr{^xxhash\.h$}, qr{^infer/model/packed_file\.c$}],
    [qr{^expat\.h$}, qr{^testing/assert/xml\.c$}],
    [qr{^cmocka\.h$}, qr{^$}],
);
# Calls and the files where they are the door itself.
my @banned = (
    [[qw(malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf aligned_alloc
         posix_memalign alloca)], qr{^(?:store/base/mem\.c|infer/cuda/cuda\.cu)$}],
    [[qw(fopen freopen open openat creat rename renameat unlink unlinkat rmdir mkdir mkstemp
         mkdtemp tmpfile ftruncate fsync fdatasync)], qr{^store/base/os/io(_path)?\.c$}],
    [[qw(abort)], qr{^store/base/error\.c$}],
    [[qw(exit _exit quick_exit)], qr{^cli/(?!ops/)}],
    [[qw(printf fprintf vprintf vfprintf puts fputs putchar fputc putc perror)], qr{^cli/(?!ops/)}],
    # A verdict has the same bits everywhere: store/base/math/detmath.h has these.
    [[map { ($_, "${_}f", "${_}l") } qw(exp exp2 exp10 expm1 log log2 log10 log1p pow cbrt hypot
         lgamma lgamma_r tgamma erf erfc sin cos sincos tan asin acos atan atan2 sinh cosh tanh
         asinh acosh atanh)], qr{^(?!testing/)}],
    [[qw(strcpy strcat stpcpy sprintf vsprintf strtok gets atoi atol atoll atof system popen
         rand srand drand48 random)], qr{^$}],
);
# One pattern a rule: a pattern a call and line costs half a minute.
for my $rule (@banned) {
    my $any = join "|", @{$rule->[0]};
    $rule->[0] = qr/(?<![\w.>])($any)\s*\(/;
}
my $breaches = 0;
my %sqlite;

sub breach {
    my ($file, $line, $text) = @_;
    print "$file:$line: $text\n";
    $breaches++;
}

# The text with comments and literals blanked, line for line.
sub blank {
    my ($text) = @_;
    $text =~ s{(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\x27(?:\\.|[^\x27\\\n])*\x27)}
              {my $t = $1; $t =~ s/[^\n]/ /g; $t}gsex;
    return $text;
}

sub check_include {
    my ($file, $line, $name, $ours) = @_;
    my ($from) = $file =~ m{^(\w+)/};
    if ($ours && $name =~ m{^(store|lineage|infer|train|testing|remote|cli|tests)/}) {
        my $to = $1;
        breach($file, $line, "$from must not include $name") unless grep { $_ eq $to } @{$may{$from}};
        breach($file, $line, "cli sees public headers only, not $name")
            if $from eq "cli" && $to ne "cli" && $name !~ $public;
        return;
    }
    breach($file, $line, "includes are written from the root: $name")
        if $ours && -e ($file =~ s{[^/]*$}{}r . $name);
    for my $rule (@foreign) {
        breach($file, $line, "$name is not for this file")
            if $name =~ $rule->[0] && $file !~ $rule->[1];
    }
    push @{$sqlite{$from}}, $file if $name eq "sqlite3.h";
}

my $files = 0;
while (my $file = <STDIN>) {
    chomp $file;
    $files++;
    open(my $in, "<", $file) or die "$file: $!";
    local $/;
    my $text = <$in>;
    my $n = 0;
    for my $l (split /\n/, $text) {
        $n++;
        check_include($file, $n, $2, $1 eq "\"") if $l =~ m{^\s*#\s*include\s*([<"])([^>"]+)};
    }
    $n = 0;
    for my $l (split /\n/, blank($text)) {
        $n++;
        for my $rule (@banned) {
            next if $file =~ $rule->[1] || $l !~ $rule->[0];
            breach($file, $n, "$1() is banned outside its door");
        }
    }
}
for my $folder (sort keys %sqlite) {
    my %once = map { $_ => 1 } @{$sqlite{$folder}};
    breach($folder, 0, "sqlite3.h in more than one file: " . join(" ", sort keys %once))
        if keys %once > 1;
}
if ($files == 0) {
    print "no sources found: wrong folder?\n";
    $breaches++;
}
exit($breaches ? 1 : 0);
'
failed=$?

# Each folder of the top explains itself, and its sub-folders, to its next maintainer.
for folder in store lineage infer train testing remote cli tests; do
    if [ ! -s "$folder/README.md" ]; then
        echo "$folder: no README.md"
        failed=1
    fi
done
exit $failed
