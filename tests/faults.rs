//! Faults while the engine loop runs: each ends in misses, counters and a clear log line, and the loop goes on.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Replay, assert_sound, has_blocks, not_run, tier_counter};

/// Enough work that a fault in its middle is in its middle.
const REQUESTS: u64 = 1_500;
const ARGUMENTS: [&str; 12] = [
    "--block-bytes",
    "16384",
    "--nvme-blocks",
    "20000",
    "--primary-blocks",
    "600",
    "--seed",
    "5",
    "--limit",
    "1500",
    "--gpu-prefix-cache",
    "off",
];

/// A file system of its own, unmounted at the end.
struct Mount(tempfile::TempDir);

impl Mount {
    /// A tmpfs of `size`; `None` (said loudly) where mounting is not allowed.
    fn tmpfs(test: &str, size: &str) -> Option<Self> {
        let place = tempfile::tempdir().expect("temporary directory");
        Self::attach(test, place, &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
    }

    /// An ext4 in a file beside the mount point.
    fn ext4(test: &str, megabytes: u64) -> Option<Self> {
        let place = tempfile::tempdir().expect("temporary directory");
        let image = place.path().with_extension("img");
        fs::File::create(&image).and_then(|file| file.set_len(megabytes << 20)).expect("image");
        let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status();
        if !made.is_ok_and(|status| status.success()) {
            not_run(test, "mkfs.ext4 does not run here (Debian: e2fsprogs)");
            return None;
        }
        let mount = Self::attach(test, place, &["-o", "loop,errors=remount-ro", &image.to_string_lossy()]);
        // The mount keeps the image open; its name is no longer needed.
        fs::remove_file(&image).expect("remove");
        mount
    }

    fn attach(test: &str, place: tempfile::TempDir, arguments: &[&str]) -> Option<Self> {
        let status = Command::new("mount").args(arguments).arg(place.path()).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(place));
        }
        not_run(test, "mounting a file system needs root");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(std::thread::panicking() || unmounted.is_ok_and(|status| status.success()), "umount");
    }
}

#[test]
fn a_full_disk() {
    let Some(disk) = Mount::tmpfs("a_full_disk", "24m") else { return };
    let (report, log) = Replay::new(disk.path()).args(ARGUMENTS).run_with_log();
    assert_sound(&report, REQUESTS, &log);
    assert!(tier_counter(&report, "stored") > 0, "{report:#}");
    assert!(log.to_lowercase().contains("no space"), "a log line names the fault: {log}");
}

#[test]
fn the_directory_is_removed() {
    let place = tempfile::tempdir().expect("temporary directory");
    let root = place.path().join("blocks");
    let (report, log) = Replay::new(&root)
        .args(ARGUMENTS)
        .run_while(|| has_blocks(&root), || fs::remove_dir_all(&root).unwrap_or_default());
    assert_sound(&report, REQUESTS, &log);
    assert!(tier_counter(&report, "vanished") + tier_counter(&report, "io_errors") > 0, "{report:#}\n{log}");
}

#[test]
fn the_file_system_turns_read_only() {
    let Some(disk) = Mount::ext4("the_file_system_turns_read_only", 900) else { return };
    let (report, log) = Replay::new(disk.path())
        .args(ARGUMENTS)
        .run_while(|| has_blocks(disk.path()), || break_into_read_only(disk.path()));
    assert_sound(&report, REQUESTS, &log);
    assert!(tier_counter(&report, "io_errors") > 0, "{report:#}\n{log}");
    assert!(log.to_lowercase().contains("read-only"), "a log line names the fault: {log}");
}

/// Makes ext4 find a fault in itself: mounted with `errors=remount-ro`, it turns read-only at once, busy as it is.
fn break_into_read_only(mount: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc/mounts");
    let is_ours = |line: &&str| line.split(' ').nth(1) == Some(&mount.to_string_lossy());
    let device = mounts.lines().find(is_ours).and_then(|line| line.split(' ').next()).expect("the mount is listed");
    let trigger = device.replace("/dev/", "/sys/fs/ext4/") + "/trigger_fs_error";
    fs::write(&trigger, "broken by a test").unwrap_or_else(|fault| panic!("{trigger}: {fault}"));
}

#[test]
fn every_operation_fails_with_eio() {
    let Some(disk) = Mount::ext4("every_operation_fails_with_eio", 900) else { return };
    let (report, log) =
        Replay::new(disk.path()).args(ARGUMENTS).run_while(|| has_blocks(disk.path()), || shut_down(disk.path()));
    assert_sound(&report, REQUESTS, &log);
    assert!(tier_counter(&report, "io_errors") > 0, "{report:#}\n{log}");
}

/// Makes an ext4 answer EIO to everything from here on (EXT4_IOC_SHUTDOWN, as `xfs_io -x -c shutdown` does).
#[expect(unsafe_code, reason = "the ioctl has no safe wrapper")]
fn shut_down(mount: &Path) {
    use std::os::fd::AsRawFd;
    const EXT4_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587D;
    let root = fs::File::open(mount).expect("mount point");
    let flags: u32 = 2; // EXT4_GOING_FLAGS_NOLOGFLUSH
    // SAFETY: the descriptor is open and the argument points to the u32 that the ioctl reads.
    let result = unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &flags) };
    assert_eq!(result, 0, "EXT4_IOC_SHUTDOWN: {}", std::io::Error::last_os_error());
}

#[test]
fn io_uring_is_denied() {
    let place = tempfile::tempdir().expect("temporary directory");
    let mut replay = Replay::new(place.path()).args(ARGUMENTS);
    deny_io_uring(replay.command());
    let (report, log) = replay.run_with_log();
    assert_sound(&report, REQUESTS, &log);
    assert!(tier_counter(&report, "stored") > 0, "blocks are stored by blocking calls: {report:#}");
    assert!(log.contains("io_uring"), "a log line says so: {log}");
}

/// The child's io_uring_setup fails with EPERM, as under a container's seccomp profile.
#[expect(unsafe_code, reason = "a seccomp filter is installed between fork and exec")]
fn deny_io_uring(command: &mut Command) {
    // Load the system call's number; io_uring_setup (425) is refused, the rest allowed.
    let filter = [
        libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: 1, k: 425 },
        libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        },
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: prctl is async-signal-safe; the program points into `filter`, which this closure owns.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only prctl is called; nothing allocates or locks.
    unsafe { command.pre_exec(install) };
}

#[test]
fn a_tier_that_hangs_for_ever() {
    let place = tempfile::tempdir().expect("temporary directory");
    let config = place.path().join("terrace.toml");
    fs::write(
        &config,
        "[primary]\nblocks = 600\n[geometry]\nblock_bytes = 16384\n[deadlines]\nlookup = \"50ms\"\npromotion = \"100ms\"\n\
         cascade = \"100ms\"\nhold = \"100ms\"\ndrain = \"1s\"\n",
    )
    .expect("config");
    let (report, log) = Replay::new(&place.path().join("blocks"))
        .args(["--config", &config.to_string_lossy(), "--tier-fault", "hang"])
        .args(ARGUMENTS)
        .run_with_log();
    assert_sound(&report, REQUESTS, &log);
    assert_eq!(report["hits"]["nvme"], 0, "{report:#}");
    assert!(report["hits"]["primary"].as_u64().is_some_and(|hits| hits > 0), "DRAM goes on serving: {report:#}");
}

#[test]
fn a_tier_that_fails_now_and_then() {
    let place = tempfile::tempdir().expect("temporary directory");
    let (report, log) = Replay::new(place.path()).args(["--tier-fault", "faulty"]).args(ARGUMENTS).run_with_log();
    assert_sound(&report, REQUESTS, &log);
    assert!(report["hits"]["nvme"].as_u64().is_some_and(|hits| hits > 0), "{report:#}");
}
