//! Copies the files that the models compile to `OUT_DIR`, each as it is (`<file>-kept.rs`) and once for each mutant (`<file>-<mutant>.rs`):
//! one place of it changed so that it is wrong. A model has to pass on the first and to fail on all others.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A file, and its mutants: a name, a text that stands in the file once, and what stands there in the mutant.
struct Source {
    name: &'static str,
    path: &'static str,
    mutants: &'static [(&'static str, &'static str, &'static str)],
}

const SOURCES: &[Source] = &[
    Source {
        name: "abandon",
        path: "tiers/src/nvme/abandon.rs",
        mutants: &[
            (
                "added_unfenced",
                "self.added.fetch_add(1, Ordering::SeqCst);\n        fence(Ordering::SeqCst);",
                "self.added.fetch_add(1, Ordering::SeqCst);",
            ),
            ("read_unfenced", "fence(Ordering::SeqCst);\n        self.added.load", "self.added.load"),
            (
                "counted_first",
                "self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);\n        self.added.fetch_add(1, Ordering::SeqCst);",
                "self.added.fetch_add(1, Ordering::SeqCst);\n        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);",
            ),
            (
                "seen_late",
                "let seen = self.seen();\n        out.append(&mut tickets);\n        seen",
                "out.append(&mut tickets);\n        drop(tickets);\n        self.seen()",
            ),
        ],
    },
    Source {
        name: "given_up",
        path: "tiers/src/object/given_up.rs",
        mutants: &[
            (
                "set_unfenced",
                "overtake it (ARM does): then bytes of another block would count.\n        fence(Ordering::SeqCst);",
                "",
            ),
            ("read_unfenced", "fence(Ordering::SeqCst);\n        self.0.load", "self.0.load"),
        ],
    },
    Source {
        name: "mailbox",
        path: "tiers/src/nvme/mailbox.rs",
        mutants: &[
            ("unannounced", "self.sleeping.store(true, Ordering::Relaxed);", ""),
            (
                "not_woken",
                "        lock(&self.inbox).commands.append(batch);\n        self.wake();",
                "        lock(&self.inbox).commands.append(batch);",
            ),
            (
                "looked_first",
                "self.sleeping.store(true, Ordering::Relaxed);\n        fence(Ordering::SeqCst);\n        lock(&self.inbox).is_empty()",
                "let empty = lock(&self.inbox).is_empty();\n        self.sleeping.store(true, Ordering::Relaxed);\n        empty",
            ),
            (
                "hold_not_looked_at",
                "!(held && lock(&self.outbox).events.len() < self.hold_events)",
                "{ let _ = held; true }",
            ),
            ("abandons_not_looked_at", " && !shard.is_asked_to_abandon()", ""),
            (
                "list_not_taken",
                "            // In this order: whoever is on the list was put into the inbox before.\n            shard.take_abandoned();\n",
                "",
            ),
        ],
    },
    Source {
        name: "tally",
        path: "primary/src/region/tally.rs",
        mutants: &[
            ("ready_relaxed", "as u64, Ordering::Release)", "as u64, Ordering::Relaxed)"),
            ("read_relaxed", "self.ready_bytes.load(Ordering::Acquire)", "self.ready_bytes.load(Ordering::Relaxed)"),
            ("gaps", "done.ahead.insert(piece);", "done.leading += 1; let _ = piece;"),
            (
                "taken_twice",
                "self.next.fetch_add(1, Ordering::Relaxed)",
                "{ let next = self.next.load(Ordering::Relaxed); self.next.store(next + 1, Ordering::Relaxed); next }",
            ),
        ],
    },
    Source {
        name: "changes",
        path: "primary/src/shared/changes.rs",
        mutants: &[
            ("told_relaxed", "told.store(self.last, Ordering::Release)", "told.store(self.last, Ordering::Relaxed)"),
            ("read_relaxed", "told.load(Ordering::Acquire)", "told.load(Ordering::Relaxed)"),
            ("told_early", "told.store(self.last, Ordering::Release)", "told.store(self.last + 1, Ordering::Release)"),
            ("not_left", "*of_slot = NEVER;", "let _ = of_slot;"),
            ("later_accepted", ".max(latest)) <= seen && seen <= self.last", ".max(latest)) <= seen + 1"),
        ],
    },
    Source {
        name: "pieces",
        path: "kernels/src/cuda/pins/pieces.rs",
        mutants: &[
            ("set_relaxed", "piece.store(state, Ordering::Release)", "piece.store(state, Ordering::Relaxed)"),
            ("read_relaxed", "piece.load(Ordering::Acquire)", "piece.load(Ordering::Relaxed)"),
            (
                "taken_twice",
                "self.next.fetch_add(1, Ordering::Relaxed)",
                "{ let next = self.next.load(Ordering::Relaxed); self.next.store(next + 1, Ordering::Relaxed); next }",
            ),
        ],
    },
    Source {
        name: "queue",
        path: "kernels/src/host/queue.rs",
        mutants: &[
            ("done_relaxed", "job.done.store(true, Ordering::Release)", "job.done.store(true, Ordering::Relaxed)"),
            ("is_done_relaxed", "self.done.load(Ordering::Acquire)", "self.done.load(Ordering::Relaxed)"),
            ("left_relaxed", "job.left.fetch_sub(1, Ordering::AcqRel)", "job.left.fetch_sub(1, Ordering::Relaxed)"),
            (
                "reported_late",
                "        state.finished.push(job.report());",
                "        job.done.store(true, Ordering::Release);\n        state.finished.push(job.report());",
            ),
            ("waiter_not_woken", "        self.done.notify_all();\n", ""),
            (
                "close_not_told",
                "self.lock().closing = true;\n        self.work.notify_all();",
                "self.lock().closing = true;",
            ),
            ("order_ignored", ".position(|waiting| waiting.job.is_ready())", ".position(|_| true)"),
        ],
    },
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where")).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    println!("cargo::rerun-if-changed=build.rs");
    for source in SOURCES {
        let path = root.join(source.path);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // The file's own tests run with its crate, outside of a model.
        let text = text.split_once("\n#[cfg(test)]").map_or(text.as_str(), |(code, _)| code);
        // The doc comment of the file itself has no place inside another.
        let text: String =
            text.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
        write(&out, source.name, "kept", &text);
        for (mutant, from, to) in source.mutants {
            assert_eq!(
                text.matches(from).count(),
                1,
                "{}: the text of the mutant {mutant} has to stand there once",
                source.path
            );
            write(&out, source.name, mutant, &text.replace(from, to));
        }
    }
}

fn write(out: &Path, name: &str, variant: &str, text: &str) {
    fs::write(out.join(format!("{name}-{variant}.rs")), text).expect("OUT_DIR can be written");
}
