//! The table of keys as a commented example file.

use std::fmt::Write;

use crate::draft::Kind;
use crate::key::{Key, Preset};
use crate::keys::SECTIONS;
use crate::object_keys::TIER_OBJECT;
use crate::tenant_keys::{TENANT, TENANT_DOC, TENANT_KEYS};
use crate::tier_keys::{TIER, TIER_DOC, tier_keys};

const HEAD: &str = "\
# Terrace: every key of the configuration.
#
# Lines such as `#policy = \"lru\"` show the default (or, where there is none, an example): take the `#` away to change it.
# Sizes: bytes as a number, or with a unit (B, KiB, MiB, GiB, TiB, PiB). Durations: with a unit (ns, us, ms, s, m, h, d).
# `terrace config check FILE` names every fault of a file; `terrace config show FILE` prints all that is in force.
";

const MEMORY_TIER: &str = "\
# A memory tier has the keys type, name, backfill, and capacity or blocks.
#[[tier]]
#type = \"memory\"
#capacity = \"16GiB\"
";

const OBJECT_TIER: &str = "\
# An object tier has the keys type, name, backfill, capacity or blocks, and those that follow. Of credentials only the place is written here.
#[[tier]]
#type = \"object\"
#capacity = \"100TiB\"
";

/// The file `terrace.example.toml`: every key with its meaning and its default, ready to be copied and changed.
pub fn example() -> String {
    let mut out = HEAD.to_owned();
    for section in &SECTIONS {
        let _ = writeln!(out, "\n# {}\n[{}]", section.doc, section.name);
        section.keys.iter().for_each(|key| write_key(&mut out, key));
    }
    let _ = writeln!(out, "\n# {TIER_DOC}\n[[{TIER}]]");
    tier_keys(Some(Kind::Nvme)).for_each(|key| write_key(&mut out, key));
    out.push('\n');
    out.push_str(MEMORY_TIER);
    out.push('\n');
    out.push_str(OBJECT_TIER);
    for key in &TIER_OBJECT {
        let _ = writeln!(out, "# {}\n#{} = {}", key.doc, key.name, key.example());
    }
    let _ = writeln!(out, "\n# {TENANT_DOC}\n#[[{TENANT}]]");
    for key in &TENANT_KEYS {
        let _ = writeln!(out, "# {}\n#{} = {}", key.doc, key.name, key.example());
    }
    out
}

// Writing to a String cannot fail.
fn write_key<S: 'static>(out: &mut String, key: &Key<S>) {
    let hash = if matches!(key.preset, Preset::Required(_)) { "" } else { "#" };
    let _ = writeln!(out, "# {}\n{hash}{} = {}", key.doc, key.name, key.example());
}
