//! The link of a world of one.

use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::link::{Absent, Closed, Link, Message};

/// A link without peers.
#[derive(Debug)]
pub(crate) struct SoloLink;

impl Link for SoloLink {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn world_rank(&self, rank: usize) -> usize {
        rank
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }

    fn try_send(&mut self, _to: usize, _message: Message) -> Result<Option<Message>, Closed> {
        Err(Closed)
    }

    fn try_receive(&mut self, _from: usize) -> Result<Option<Message>, Closed> {
        Err(Closed)
    }

    fn wait(&mut self, _sends: &[usize], _receives: &[usize], _deadline: Instant) {}

    fn failure(&self) -> Option<Failure> {
        None
    }

    fn fail(&mut self, _reason: &str) {}

    fn watch(&self) -> Watch {
        Watch::new(|| None)
    }

    fn begin(&mut self, _signature: &Signature) -> Result<(), (usize, Signature)> {
        Ok(())
    }

    fn absent(&self, _call: Call) -> Option<Absent> {
        None
    }

    fn split(&mut self, _sequence: u64, _group: usize, _members: &[usize]) -> Self {
        SoloLink
    }
}
