//! What this machine lets a process have, asked before it is taken: the kernel's answer to asking too much of it is to kill.
//!
//! Every path is taken below `root`, so that tests can stand a machine up in a folder. What cannot be read is no limit.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Bytes that can be had, and which limit says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Available {
    pub(super) bytes: u64,
    pub(super) limit: &'static str,
}

/// Memory that can be had without swapping or killing: the least of what the machine, the NUMA node and the control groups of
/// this process have left.
pub(super) fn available_memory(root: &Path, numa_node: Option<u32>) -> Option<Available> {
    let machine = field(&read(root, "proc/meminfo"), "MemAvailable:")
        .map(|kib| Available { bytes: kib * 1024, limit: "MemAvailable of /proc/meminfo" });
    let node = numa_node.and_then(|node| {
        let text = read(root, &format!("sys/devices/system/node/node{node}/meminfo"));
        let part = |name| field(&text, name).unwrap_or(0);
        // Lines are "Node 0 MemFree: 1 kB"; the page cache can be dropped, shared memory cannot.
        let free = field(&text, "MemFree:")? + part("FilePages:").saturating_sub(part("Shmem:"));
        Some(Available { bytes: free * 1024, limit: "free memory of the NUMA node" })
    });
    [machine, node, control_group(root)].into_iter().flatten().min_by_key(|available| available.bytes)
}

/// What the control groups of this process have left, page cache counted as free.
fn control_group(root: &Path) -> Option<Available> {
    let membership = read(root, "proc/self/cgroup");
    let mut least: Option<u64> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, limit, usage, cache) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current", ["active_file", "inactive_file"])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (
                "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_active_file", "total_inactive_file"],
            )
        } else {
            continue;
        };
        let mount = root.join(mount);
        let mut group = mount.join(path.trim_start_matches('/'));
        // A limit of any group on the way up counts.
        while group.starts_with(&mount) {
            let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(usage)) = (number(limit), number(usage)) {
                let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
                let cache: u64 = cache.iter().filter_map(|name| field(&stat, name)).sum();
                let left = limit.saturating_sub(usage.saturating_sub(cache));
                least = Some(least.map_or(left, |least| least.min(left)));
            }
            if !group.pop() {
                break;
            }
        }
    }
    least.map(|bytes| Available { bytes, limit: "memory limit of the control group" })
}

/// Pages of 2 MiB: free and not promised to others, and reserved in all. Of one node, or of the machine.
pub(super) fn huge_pages(root: &Path, numa_node: Option<u32>) -> (u64, u64) {
    let folder = match numa_node {
        Some(node) => format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"),
        None => "sys/kernel/mm/hugepages/hugepages-2048kB".to_owned(),
    };
    let number = |name| read(root, &format!("{folder}/{name}")).trim().parse().unwrap_or(0_u64);
    (number("free_hugepages").saturating_sub(number("resv_hugepages")), number("nr_hugepages"))
}

/// The limit on locked memory; `None` where there is none, or this process may pass it.
pub(super) fn lock_limit(root: &Path) -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = read(root, "proc/self/status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    if capabilities >> CAP_IPC_LOCK & 1 == 1 {
        return None;
    }
    getrlimit(Resource::Memlock).current
}

/// Whether the machine has this NUMA node.
pub(super) fn has_node(root: &Path, node: u32) -> bool {
    root.join(format!("sys/devices/system/node/node{node}")).is_dir()
}

fn read(root: &Path, path: &str) -> String {
    let path: PathBuf = root.join(path);
    fs::read_to_string(path).unwrap_or_default()
}

/// The number after the word `name`, wherever on its line that stands.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n");

    #[test]
    fn a_machine_without_groups_has_what_meminfo_says() {
        let root = machine(&[MEMINFO]);
        let available = available_memory(root.path(), None).expect("meminfo is there");
        assert_eq!(available, Available { bytes: 600 << 10, limit: "MemAvailable of /proc/meminfo" });
        assert_eq!(available_memory(machine(&[]).path(), None), None);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts_and_its_cache_is_free() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "1000\n"),
            ("sys/fs/cgroup/outer/memory.max", "300000\n"),
            ("sys/fs/cgroup/outer/memory.current", "200000\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 5\nactive_file 1000\ninactive_file 2000\n"),
        ]);
        let available = available_memory(root.path(), None).expect("limits");
        assert_eq!(available, Available { bytes: 103_000, limit: "memory limit of the control group" });
    }

    #[test]
    fn groups_of_the_first_version_count() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "6000\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 3500\n"),
        ]);
        assert_eq!(available_memory(root.path(), None).expect("limits").bytes, 2500);
    }

    #[test]
    fn a_node_has_its_free_memory_and_its_page_cache() {
        let node = "Node 1 MemFree:       50 kB\nNode 1 FilePages:    40 kB\nNode 1 Shmem:         30 kB\n";
        let root = machine(&[MEMINFO, ("sys/devices/system/node/node1/meminfo", node)]);
        assert_eq!(available_memory(root.path(), Some(1)).expect("limits").bytes, 60 << 10);
        assert!(has_node(root.path(), 1) && !has_node(root.path(), 0));
    }

    #[test]
    fn huge_pages_promised_to_others_are_not_free() {
        let folder = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let names = ["free_hugepages", "resv_hugepages", "nr_hugepages"].map(|name| format!("{folder}/{name}"));
        let root = machine(&[(&names[0], "7\n"), (&names[1], "3\n"), (&names[2], "9\n")]);
        assert_eq!(huge_pages(root.path(), None), (4, 9));
    }

    #[test]
    fn whoever_may_lock_all_has_no_lock_limit() {
        let root = machine(&[("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n")]);
        assert_eq!(lock_limit(root.path()), None);
        let root = machine(&[("proc/self/status", "CapEff:\t0000000000003fff\n")]);
        assert_eq!(lock_limit(root.path()), getrlimit(Resource::Memlock).current);
    }
}
