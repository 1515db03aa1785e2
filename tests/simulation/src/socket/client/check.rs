//! What must hold of a client's process, and of what the daemon holds for it.

use std::time::Duration;

use terrace_connector::client::{RemoteManager, SessionState};
use terrace_tiers::Clock;

use super::Client;
use super::life::Life;
use super::machine::Simulated;
use crate::failure::Reason;

impl Life {
    /// Makes a call, which may wait for so long at most.
    pub(super) fn timed<T>(
        &mut self,
        what: &str,
        within: Duration,
        call: impl FnOnce(&mut RemoteManager<Simulated>) -> T,
    ) -> Result<T, Reason> {
        let clock = self.world.borrow().clock.clone();
        let before = clock.now();
        let result = call(&mut self.manager);
        let took = clock.now().since(before);
        if took > within {
            return Err(Reason::Contract(format!("{what} took {took:?} where {within:?} are allowed")));
        }
        Ok(result)
    }

    /// Once the daemon has heard all and answered all, it holds nothing for the process that the client does not know of.
    pub(super) fn check_held(&self) -> Result<(), Reason> {
        // What the step before this one leased has ended with it.
        if self.steps_in_sync < 2 {
            return Ok(());
        }
        let world = self.world.borrow();
        let server = world.server.borrow();
        let name = &world.name;
        let known = |job: &&super::life::Job| job.connects == self.connects;
        let slots: usize = self.jobs.values().filter(known).map(|job| job.keys.len()).sum();
        for pool in server.pools() {
            let sessions = pool.sessions().filter(|session| session.engine == name && session.is_connected);
            let held: u32 = sessions.map(|session| session.slots).sum();
            let jobs = pool.jobs(name).unwrap_or(0);
            if held as usize > slots || jobs > self.jobs.len() {
                return Err(Reason::Leak(format!(
                    "the daemon holds {held} slots and {jobs} jobs for {name}, which knows of {slots} and {}",
                    self.jobs.len()
                )));
            }
        }
        Ok(())
    }

    /// It has ended all it began and the daemon heard it a while ago: nothing is held, though the process lives.
    fn check_at_rest(&self) -> Result<(), Reason> {
        let world = self.world.borrow();
        let (server, name) = (world.server.borrow(), &world.name);
        let state = self.manager.session().state();
        if state != SessionState::Ready || !self.jobs.is_empty() || !self.requests.is_empty() {
            let (jobs, requests) = (self.jobs.len(), self.requests.len());
            return Err(Reason::Leak(format!("{name} is {state:?} with {jobs} jobs and {requests} requests")));
        }
        if !self.has_rested {
            return Err(Reason::Contract(format!("{name} has nothing to do, and is told to go on stepping")));
        }
        for pool in server.pools() {
            let sessions = pool.sessions().filter(|session| session.engine == name);
            if let Some(session) = sessions.into_iter().find(|session| session.slots > 0 || !session.is_connected) {
                return Err(Reason::Leak(format!("at rest the daemon keeps {session:?}")));
            }
        }
        Ok(())
    }
}

impl Client {
    /// After each step.
    pub fn check(&self, server: &super::SharedServer) -> Result<(), Reason> {
        let jobs = self.gone.as_ref().and_then(|name| server.borrow().pools().find_map(|pool| pool.jobs(name)));
        match jobs {
            Some(jobs) => Err(Reason::Leak(format!("{:?} is gone and has {jobs} jobs", self.gone))),
            None => Ok(()),
        }
    }

    /// When all deadlines have passed since it began to rest.
    pub fn check_at_rest(&self) -> Result<(), Reason> {
        self.life.as_ref().map_or(Ok(()), Life::check_at_rest)
    }
}
