#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of repository: tests/fuzz/make_repository_corpus.py (no arguments, no packages).

What the lines mean is told in repository_tree.h and repository_fuzz.cc. Accepted is a script by
which at least one model becomes ready.
"""

import corpus_files

LARGEST = 2**63 - 1
CONFIG = '{"model_type":"mlp","input_dim":1,"output_dim":1,"state_dim":1,"num_layers":1,"activation":"relu"}'


def script(*lines):
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")


CORPUS = {
    "accepted-minimal": script("m a/1", "A"),
    "accepted-load": script("m a/1", "L a 1", "F a 1", "U a 1"),
    "accepted-latest": script("m a/2", "m a/10", "m a/9", "A", "L a 0", "L a 9", "F a 0"),
    "accepted-largest": script(f"m a/{LARGEST}", "m a/1", "A", f"U a {LARGEST}"),
    "accepted-no-versions-beside": script(
        "m a/1", "m a/007", "m a/-1", "m a/+2", "m a/0", "m a/00", "m a/1.0", "m a/2x", "m a/ 3",
        f"m a/{LARGEST + 1}", "m a/99999999999999999999", "m a/latest", "A"),
    "accepted-file-like-a-version": script("m a/1", "w a/20241231 notes", "A"),
    "accepted-many": script("n a 100", "m a/100", "A", "L a 50", "L a 100"),
    "accepted-several": script("m a/1", "m b/1", "m c/2", "A", "U b 0", "L b 1", "U c 2"),
    "accepted-one-fails": script("m a/1", "d b/1", "A", "m b/1", "L b 0"),
    "accepted-higher-makes-up": script("d a/1", "A", "m a/2", "L a 2", "U a 2", "U a 1"),
    "accepted-lower-serves": script("m a/1", "A", "d a/2", "L a 2", "F a 0", "F a 2", "F a 1"),
    "accepted-reload-fails": script("m a/1", "A", "w a/1/config.json {}", "L a 1", "A"),
    "accepted-removed-below": script("m a/1", "A", "r a", "L a 0", "A", "U a 0"),
    "accepted-repository-removed": script("m a/1", "A", "R", "A", "L a 0", "F a 1"),
    "accepted-held": script("m a/1", "A", "F a 0", "U a 0", "L a 1", "F a 1", "L a 1"),
    "accepted-config": script("m a/1", "w a/1/config.json " + CONFIG, "A"),
    "accepted-link-beside": script("m a/1", "l b a", "A", "L a 0"),
    "accepted-refused-beside": script("m a/1", "l b ../outside", "l c c", "d d", "p e", "s f", "A", "U b 0"),
    "accepted-hidden": script("m .git/1", "w README.md text", "m a/1", "A", "L .git 1"),
    "accepted-names": script("m lost+found/1", "m a%b/1", "m \udcff\udcfe/1", "m \u00e9/1", "m  /1",
                             "m \x1b[2J/1", "m \x7f/1", "m ok/1", "A"),
    "accepted-long-names": script(f"m {'x' * 128}/1", f"m {'y' * 129}/1", f"m {'z' * 255}/1", "A"),
    "accepted-name-of-dots": script("m .../1", "m ..a/1", "m -a/1", "m a/1", "A", "L ... 0", "L ..a 1"),
    "accepted-repaired": script("l a b", "A", "r a", "m a/1", "L a 0"),
    "refused-empty": b"",
    "refused-nothing": script("A"),
    "refused-no-repository": script("R", "A", "L a 0"),
    "refused-no-version": script("d a", "A", "L a 0", "L a 1", "F a 0", "F a 1", "U a 1", "U a 0"),
    "refused-zeros": script("m a/007", "A", "L a 7", "L a 007", "L a 0"),
    "refused-versions": script("m a/-1", "m a/0", f"m a/{LARGEST + 1}", "A", "L a -1", f"L a {LARGEST + 1}", "L a +1"),
    "refused-names": script("m a/1", "L .. 1", "L . 1", "L ../outside 1", "L a/1 1", "L  1", "L a% 1",
                            "L \udcff 1", f"L {'x' * 129} 1", "U .. 0", "F .. 0"),
    "refused-link-to-model": script("l a ../outside", "A", "L a 0", "L a 1", "F a 0", "U a 0"),
    "refused-link-to-version": script("d a", "l a/1 ../../outside/1", "A", "L a 0", "L a 1"),
    "refused-link-to-file": script("m a/1", "r a/1/config.json", "l a/1/config.json ../../../outside/1/config.json",
                                   "A", "L a 1"),
    "refused-link-hides-version": script("m a/1", "l a/2 1", "A", "L a 0"),
    "refused-link-inside": script("l a b", "l b a", "l c c", "l d nothing", "l e .", "A", "L a 0", "L c 0", "L e 1"),
    "refused-fifo": script("p a", "p b/1", "m c/1", "p c/1/x", "m d/1", "r d/1/config.json", "p d/1/config.json", "A",
                           "L a 0", "L b 0", "L b 1", "L c 1", "L d 1"),
    "refused-socket": script("s a", "s b/1", "m c/1", "s c/1/x", "A", "L a 0", "L b 1", "L c 1"),
    "refused-file": script("w a text", "w b/1 text", "A", "L a 0", "L a 1", "L b 0", "L b 1"),
    "refused-directory-for-file": script("m a/1", "r a/1/config.json", "d a/1/config.json", "A", "L a 1"),
    "refused-unreadable-model": script("m a/1", "x a", "A", "L a 0", "L a 1"),
    "refused-unreadable-version": script("m a/1", "x a/1", "A", "L a 0", "L a 1"),
    "refused-unreadable-file": script("m a/1", "x a/1/model.safetensors", "A", "L a 1"),
    "refused-large": script("m a/1", "b a/1/model.safetensors", "m b/1", "b b/1/config.json", "A"),
    "refused-contents": script("m a/1", "w a/1/config.json [", "m b/1", "w b/1/model.safetensors x", "m c/1",
                               "r c/1/model.safetensors", "m d/1", "w d/1/scheduler_config.json {}", "A"),
    "refused-names-of-files": script("m a/1", "l a/1/x%y x", "m b/1", "d b/1/\udcff", "A", "L a 1", "L b 1"),
    "refused-many": script("n a 100", "l a/101 1", "A", "L a 100", "L a 101", "L a 102"),
}


if __name__ == "__main__":
    corpus_files.write("repository", CORPUS)
