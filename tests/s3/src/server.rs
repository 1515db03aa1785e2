//! SeaweedFS in a directory, killed, stopped and started again at will.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::client::{ACCESS_KEY, SECRET_KEY, create_bucket};
use crate::error::{Error, Result, system};

/// Ports that one server takes, from the one that S3 is on (see `scripts/seaweedfs`).
const PORTS: u16 = 9;
/// The one of them that speaks TLS.
const TLS_PORT: u16 = 8;
/// Where ports are looked for: below those that the kernel gives to connections.
const FIRST_PORT: u16 = 20_000;
const LAST_PORT: u16 = 28_000;

/// SeaweedFS, one process that is a whole S3 store.
pub struct SeaweedFs;

impl SeaweedFs {
    /// Starts a server that keeps everything in `dir`, on free ports of the loopback address, and returns when S3
    /// answers: about 3 seconds. The first call on a machine installs it: a minute at most, over the network.
    ///
    /// # Errors
    /// [`Error::Start`] when it cannot be installed or does not answer; the end of its log is in the message.
    pub fn start(dir: impl AsRef<Path>) -> Result<Server> {
        Self::start_as(dir.as_ref(), None)
    }

    /// The same, over TLS too ([`Server::tls_endpoint`]): `certificates` is a directory with `server.pem` and `server.key`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_tls(dir: impl AsRef<Path>, certificates: impl AsRef<Path>) -> Result<Server> {
        Self::start_as(dir.as_ref(), Some(certificates.as_ref().to_owned()))
    }

    fn start_as(dir: &Path, certificates: Option<PathBuf>) -> Result<Server> {
        let ports = Ports::take()?;
        let mut server = Server { dir: dir.to_owned(), ports, certificates, process: None };
        server.restart()?;
        Ok(server)
    }
}

/// A running server. Dropping it kills it; when the test's own process is killed, it is killed too. Its directory stays.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    ports: Ports,
    certificates: Option<PathBuf>,
    process: Option<Process>,
}

impl Server {
    /// Where S3 is: `http://ADDRESS:PORT`, path style. Stays the same over [`Self::restart`].
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Where S3 is over TLS, if it was started so: `https://ADDRESS:PORT`.
    pub fn tls_endpoint(&self) -> String {
        format!("https://{}:{}", Ipv4Addr::LOCALHOST, self.ports.first + TLS_PORT)
    }

    /// Where S3 is, for a [`Proxy`](crate::Proxy).
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.first).into()
    }

    /// [`ACCESS_KEY`].
    pub fn access_key(&self) -> &str {
        ACCESS_KEY
    }

    /// [`SECRET_KEY`].
    pub fn secret_key(&self) -> &str {
        SECRET_KEY
    }

    /// Creates a bucket; one that is there is kept. Names have at least 3 letters.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::NoAnswer`] (30 seconds), as the server gives them.
    pub fn create_bucket(&self, name: &str) -> Result<()> {
        create_bucket(self.address(), name)
    }

    /// Kills it with SIGKILL, stopped or not, and returns when the process is gone. Nothing to do when it is.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::end)
    }

    /// Starts it on the same directory and port, killed before if it runs. Returns when S3 answers: 3 to 8 seconds.
    ///
    /// # Errors
    /// As [`SeaweedFs::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.process = Some(Process::start(&self.dir, self.ports.first, self.certificates.as_deref())?);
        Ok(())
    }

    /// SIGSTOP: connections are taken by the kernel and nobody answers. Does nothing to a server that was killed.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: it goes on with what has come in meanwhile.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn cont(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().map_or(Ok(()), |process| process.signal(signal))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody is left to tell: the keeper or the machine's end takes what this leaves.
        let _ = self.kill();
    }
}

#[derive(Debug)]
struct Process {
    handle: OwnedFd,
    keeper: Child,
}

impl Process {
    fn start(dir: &Path, port: u16, certificates: Option<&Path>) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/seaweedfs");
        let mut command = Command::new(&script);
        if let Some(certificates) = certificates {
            command.env("TERRACE_S3_TLS", certificates);
        }
        let output = command
            .arg(dir)
            .arg(port.to_string())
            .env("TERRACE_S3_BIND", Ipv4Addr::LOCALHOST.to_string())
            .stdin(Stdio::null())
            .output()
            .map_err(system("running scripts/seaweedfs"))?;
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        let number = String::from_utf8_lossy(&output.stdout).trim().parse::<i32>().ok().and_then(Pid::from_raw);
        let (true, Some(pid)) = (output.status.success(), number) else {
            return Err(Error::Start { script, said: said() });
        };
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(system("a handle of the server's process"))?;
        // The server is nobody's child. This shell outlives a killed test by the moment that it takes to kill it.
        let keeper = Command::new("sh")
            .args(["-c", r#"read -r _; kill -9 "$1""#, "sh", &pid.as_raw_nonzero().to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(system("the shell that guards the server"))?;
        Ok(Self { handle, keeper })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.handle, signal).map_err(system("a signal to the server"))
    }

    /// Kills it and waits until the kernel has closed its sockets and files.
    fn end(mut self) -> Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            // It ended by itself.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(system("killing the server")(error)),
        }
        loop {
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], None) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(system("waiting for the server's end")(error)),
            }
        }
        self.keeper.kill().and_then(|()| self.keeper.wait()).map_err(system("ending the server's guard"))?;
        Ok(())
    }
}

/// Ports in a row that no other test of this machine takes: a locked file says so, as long as this lives.
#[derive(Debug)]
struct Ports {
    first: u16,
    _lock: File,
}

impl Ports {
    fn take() -> Result<Self> {
        let dir = std::env::temp_dir().join("terrace-test-ports");
        fs::create_dir_all(&dir).map_err(system("a directory for port locks"))?;
        for first in (FIRST_PORT..LAST_PORT).step_by(usize::from(PORTS)) {
            let lock = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(dir.join(first.to_string()))
                .map_err(system("a port lock"))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(system("a port lock")(error)),
            }
            let all: io::Result<Vec<_>> =
                (first..first + PORTS).map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))).collect();
            if all.is_ok() {
                return Ok(Self { first, _lock: lock });
            }
        }
        Err(Error::Ports { count: PORTS, first: FIRST_PORT, last: LAST_PORT })
    }
}
