//! Links between ranks: within a host, and the network between hosts.

use collective::{Axis, GridShape};

use crate::rates::DeviceRates;

/// A group of communicating ranks at equal distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    pub(super) ranks: usize,
    /// Difference between neighbouring ranks' numbers.
    pub(super) stride: usize,
}

impl Peers {
    pub(super) fn along(grid: GridShape, axis: Axis) -> Self {
        let faster = grid.axes().skip_while(|(other, _)| *other != axis).skip(1);
        Peers { ranks: grid.size(axis), stride: faster.map(|(_, size)| size).product() }
    }

    /// Returns the first `ranks` ranks of the group.
    pub(super) fn first(self, ranks: usize) -> Self {
        Peers { ranks, ..self }
    }

    /// Returns `ranks` ranks of the group, taking every `step`-th.
    pub(super) fn every(self, step: usize, ranks: usize) -> Self {
        Peers { ranks, stride: self.stride * step }
    }

    /// Returns how many of the ranks are on one host.
    fn on_host(self, gpus_per_host: usize) -> usize {
        (gpus_per_host / self.stride).clamp(1, self.ranks)
    }
}

/// Rates of links, in bytes per second that a rank sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    /// Rate between ranks of one host.
    host: f64,
    /// Rate between ranks of different hosts.
    network: f64,
    gpus_per_host: usize,
}

impl Links {
    /// Returns the links of a device with `rates` and `gpus_per_host` GPUs per host.
    pub(super) fn from_rates(rates: &DeviceRates, gpus_per_host: usize) -> Self {
        Links { host: rates.link_bytes, network: rates.network(), gpus_per_host }
    }

    /// Returns the seconds in which each of `peers` sends every other its part of `bytes` bytes. Transfers
    /// within the host and over the network overlap.
    pub(super) fn parts(self, peers: Peers, bytes: f64) -> f64 {
        let part = bytes / peers.ranks as f64;
        let on_host = peers.on_host(self.gpus_per_host);
        let here = (on_host - 1) as f64 * part / self.host;
        let elsewhere = (peers.ranks - on_host) as f64 * part / self.network;
        here.max(elsewhere)
    }

    /// Returns the seconds in which a rank sends `bytes` bytes to the next of `peers`, over the network if
    /// the group spans hosts.
    pub(super) fn next(self, peers: Peers, bytes: f64) -> f64 {
        bytes / if peers.on_host(self.gpus_per_host) == peers.ranks { self.host } else { self.network }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_send_over_the_network_to_those_on_other_hosts() {
        let links = Links { host: 400.0, network: 50.0, gpus_per_host: 8 };
        let grid = GridShape::new(&[(Axis::Data, 16), (Axis::Pipeline, 2), (Axis::Tensor, 4)]).unwrap();
        let tensor = Peers::along(grid, Axis::Tensor);
        assert_eq!((tensor.ranks, tensor.stride), (4, 1));
        assert_eq!(links.parts(tensor, 1600.0), 3.0);
        let pipeline = Peers::along(grid, Axis::Pipeline);
        assert_eq!((pipeline.ranks, pipeline.stride, links.next(pipeline, 400.0)), (2, 4, 1.0));
        // Each host has one of the 16 data-parallel ranks.
        let data = Peers::along(grid, Axis::Data);
        assert_eq!((data.ranks, data.stride), (16, 8));
        assert_eq!(links.parts(data, 1600.0), 30.0);
        // Two of four are on each host.
        let pairs = Peers { ranks: 4, stride: 4 };
        assert_eq!(links.parts(pairs, 400.0), 4.0);
        assert_eq!(links.parts(pairs.first(2), 400.0), 0.5);
        assert_eq!(pairs.every(2, 2).on_host(8), 1);
        assert_eq!(links.parts(Peers { ranks: 1, stride: 1 }, 400.0), 0.0);
    }
}
