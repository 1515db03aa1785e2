//! Engines that use the product's client: the real [`RemoteManager`] on a simulated machine.
//!
//! | module | role |
//! |---|---|
//! | `machine`, `relay` | what the client takes for its machine; what its bytes go through |
//! | `life`, `request` | a process over its steps; what it does for a request |
//! | `check` | what must hold of it |
//!
//! [`RemoteManager`]: terrace_connector::client::RemoteManager

mod check;
mod life;
mod machine;
mod relay;
mod request;

use std::cell::RefCell;
use std::rc::Rc;

use terrace_connector::server::InlineServer;

use self::life::Life;
use super::common::Common;
use super::world::Below;
use crate::failure::Reason;

/// The daemon as all its clients have it.
pub(crate) type SharedServer = Rc<RefCell<InlineServer>>;
/// What is below it.
pub(crate) type SharedBelow = Rc<RefCell<Vec<Below>>>;

/// An engine, over all its lives.
pub(crate) struct Client {
    pub number: u64,
    pub namespace: u8,
    life: Option<Life>,
    lives: u64,
    /// The name of the last life, if the daemon was told of its end.
    gone: Option<String>,
    /// It comes back no more, and begins nothing.
    pub is_over: bool,
}

impl Client {
    pub const fn new(number: u64, namespace: u8) -> Self {
        Self { number, namespace, life: None, lives: 0, gone: None, is_over: false }
    }

    /// One step of the engine.
    pub fn step(&mut self, server: &SharedServer, below: &SharedBelow, common: &mut Common) -> Result<(), Reason> {
        if self.life.is_none() && !self.is_over && common.rng.chance(200) {
            self.lives += 1;
            let name = format!("client-{}-{}", self.number, self.lives);
            self.life = Some(Life::start(name, self.namespace, (server, below), common));
        }
        let Some(life) = &mut self.life else { return Ok(()) };
        life.step(self.is_over, common)?;
        if !self.is_over && common.rng.chance(common.settings.death_per_mille) {
            common.count("clients that ended in order");
            life.shut_down()?;
            self.leave();
        }
        Ok(())
    }

    /// The process is gone.
    pub fn die(&mut self, common: &mut Common) {
        if let Some(life) = &mut self.life {
            common.count("clients that died");
            common.counts.abandoned += u64::from(life.is_copying());
            life.cut();
            self.leave();
        }
    }

    fn leave(&mut self) {
        let life = self.life.take();
        self.gone = life.filter(Life::is_seen).map(|life| life.name());
    }

    /// The connection breaks.
    pub fn cut(&mut self) {
        if let Some(life) = &mut self.life {
            life.cut();
        }
    }

    /// The daemon hears nothing for a while.
    pub fn unhear(&mut self, is_unheard: bool) {
        if let Some(life) = &mut self.life {
            life.unhear(is_unheard);
        }
    }

    /// Nothing of it runs, and the daemon knows.
    pub fn is_idle(&self) -> bool {
        self.life.as_ref().is_none_or(Life::is_idle)
    }

    /// What is copied of a connection that is lost takes long.
    pub fn is_stuck(&self) -> bool {
        self.life.as_ref().is_some_and(Life::is_stuck)
    }
}
