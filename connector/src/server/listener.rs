//! The socket: made with its mode, taken over from a dead daemon, never from a living one.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

use super::error::ServerError;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Held locked: two daemons that start at once cannot both take the path over.
    _lock: File,
}

impl Listener {
    /// Listens at `path`: mode 0600, or 0660 for `group`.
    pub fn bind(path: &Path, group: Option<u32>) -> Result<Self, ServerError> {
        let refuse = |problem: &str, source: Option<io::Error>| ServerError::Socket {
            path: path.to_owned(),
            problem: problem.to_owned(),
            source,
        };
        let address = SocketAddrUnix::new(path).map_err(|errno| {
            refuse("this is no path of a socket: give one of at most 107 bytes", Some(errno.into()))
        })?;
        let lock = lock(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                refuse("another daemon listens on it: stop that one, or give this one a path of its own", None)
            }
            _ => refuse("its lock file beside it cannot be made: make the directory, owned by this user", Some(error)),
        })?;
        remove_stale(path).map_err(|(problem, source)| refuse(problem, source))?;
        let system = |errno: rustix::io::Errno| refuse("it cannot be listened on", Some(errno.into()));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system)?;
        // The file gets this mode when it is made; and nobody is served before `listen`.
        fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(system)?;
        bind(&socket, &address).map_err(system)?;
        if let Some(group) = group {
            std::os::unix::fs::chown(path, None, Some(group))
                .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o660)))
                .map_err(|error| refuse("it cannot be given to [server] group: run as a member of it", Some(error)))?;
        }
        listen(&socket, BACKLOG).map_err(system)?;
        Ok(Self { socket, path: path.to_owned(), _lock: lock })
    }

    /// The next connection, if one waits.
    pub fn accept(&self) -> rustix::io::Result<OwnedFd> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Locks the file beside the socket. It stays: removed, two daemons could each lock one of the same name.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(name)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes a socket that nobody listens on any more.
fn remove_stale(path: &Path) -> Result<(), (&'static str, Option<io::Error>)> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(("it cannot be looked at", Some(error))),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(("something that is no socket is there: remove it, or give another path", None));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(("another process listens on it: stop that one, or give this one a path of its own", None)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|error| ("the socket of a dead daemon cannot be removed: remove it", Some(error))),
        Err(error) => Err(("it cannot be seen whether another process listens on it", Some(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    #[test]
    fn a_stale_socket_gives_way_and_a_live_one_does_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let first = Listener::bind(&path, None).expect("it listens");
        assert_eq!(mode(&path), 0o600);
        assert!(Listener::bind(&path, None).is_err_and(|error| error.to_string().contains("another daemon")));
        drop(first);
        assert!(!path.exists(), "the file goes with the listener");
        // A process that died leaves its file; one that lives and is no daemon of ours is not touched.
        let alien = std::os::unix::net::UnixListener::bind(&path).expect("it listens");
        assert!(Listener::bind(&path, None).is_err_and(|error| error.to_string().contains("another process")));
        drop(alien);
        assert!(path.exists());
        Listener::bind(&path, None).expect("a dead one's socket is taken over");
        std::fs::write(&path, "text").expect("a file");
        assert!(Listener::bind(&path, None).is_err_and(|error| error.to_string().contains("no socket")));
        assert!(path.exists());
    }

    #[test]
    fn a_group_may_connect() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let group = rustix::process::getegid().as_raw();
        let _listener = Listener::bind(&path, Some(group)).expect("its own group");
        assert_eq!(mode(&path), 0o660);
    }
}
