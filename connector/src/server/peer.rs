//! Who connects: credentials of the peer, users and groups by name.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use terrace_config::ServerConfig;

use super::error::ServerError;

/// The process at the other end, when it connected.
#[derive(Debug)]
pub(super) struct Peer {
    pub uid: u32,
    /// 0: it lives in a process namespace that cannot be seen from here.
    pub pid: i32,
    /// Readable when the process is gone. `None`: nobody tells.
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// `None`: it is gone already, or cannot be told.
    pub fn of(socket: &OwnedFd) -> Option<Self> {
        let credentials = getsockopt(socket, sockopt::PeerCredentials).ok()?;
        let pid = credentials.pid();
        let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // It lived after its number was looked up, so the number was still its own.
        (!is_hung_up(socket)).then_some(Self { uid: credentials.uid(), pid, pidfd })
    }
}

/// Whether the other side has closed.
pub(super) fn is_hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let told = poll(&mut fds, Some(&now)).is_ok();
    !told || fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

/// Who may connect.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    users: Vec<u32>,
    /// The file mode of the socket says who.
    anyone: bool,
}

impl Admission {
    pub fn new(config: &ServerConfig) -> Result<Self, ServerError> {
        let number = |name: &String| {
            number_of(name, "/etc/passwd").ok_or(ServerError::Unknown { key: "allow_users", name: name.clone() })
        };
        let mut users = config.allow_users.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        users.extend([0, geteuid().as_raw()]);
        Ok(Self { users, anyone: config.group.is_some() && config.allow_users.is_empty() })
    }

    pub fn admits(&self, uid: u32) -> bool {
        self.anyone || self.users.contains(&uid)
    }
}

/// The number of the group that may connect.
pub(super) fn group(config: &ServerConfig) -> Result<Option<u32>, ServerError> {
    let Some(name) = &config.group else { return Ok(None) };
    match number_of(name, "/etc/group") {
        Some(number) => Ok(Some(number)),
        None => Err(ServerError::Unknown { key: "group", name: name.clone() }),
    }
}

/// A number, or a name in a file whose lines are `name:password:number:...`.
fn number_of(name: &str, file: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(number_of("root", "/etc/passwd"), Some(0));
        assert_eq!(number_of("1234", "/etc/passwd"), Some(1234));
        assert_eq!(number_of("no such user", "/etc/passwd"), None);
        assert_eq!(number_of("root", "/nowhere"), None);
    }

    #[test]
    fn who_is_admitted() {
        let own = geteuid().as_raw();
        let config = ServerConfig { allow_users: vec!["4242".to_owned()], ..ServerConfig::default() };
        let admission = Admission::new(&config).expect("numbers are known");
        assert!([0, own, 4242].into_iter().all(|uid| admission.admits(uid)) && !admission.admits(4243));
        let nobody = ServerConfig { allow_users: vec!["no such user".to_owned()], ..ServerConfig::default() };
        assert!(matches!(Admission::new(&nobody), Err(ServerError::Unknown { key: "allow_users", .. })));
        let group = ServerConfig { group: Some("4242".to_owned()), ..ServerConfig::default() };
        assert!(Admission::new(&group).expect("a number").admits(4243), "the mode of the socket decides");
    }
}
