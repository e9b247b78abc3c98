//! [`KeptMaps`]: tensor maps of products for Hopper that no plan holds, kept in a slot of the handle, so that equal calls encode them once.

use std::num::NonZeroUsize;

use lru::LruCache;

use crate::error::Result;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Call, Sm90Maps, Sm90MapsKey};

/// Calls whose maps are kept: of a model's layers those by their weights, at a few batch sizes. Some 1.5 KB of host memory each.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// The slot of tensor maps in a handle. The longest unused are forgotten first.
///
/// A map says of a matrix its shape and its address, and [`Sm90Maps`] takes it for a matrix of the same alone: so none is wrong for memory that was given back since,
/// and has another matrix now. A launch copies the maps, and a captured graph has them for itself.
pub(crate) struct KeptMaps(LruCache<Sm90MapsKey, Sm90Maps>);

impl Default for KeptMaps {
    fn default() -> Self {
        Self(LruCache::new(KEPT))
    }
}

impl KeptMaps {
    /// Those of such calls, or none yet. They are to be given back.
    fn take(&mut self, key: &Sm90MapsKey) -> Sm90Maps {
        self.0.get_mut(key).map(std::mem::take).unwrap_or_default()
    }

    fn give_back(&mut self, key: Sm90MapsKey, maps: Sm90Maps) {
        // Calls without rows, and refused ones, have none.
        if maps.is_empty() {
            return;
        }
        match self.0.peek_mut(&key) {
            Some(place) => *place = maps,
            None => drop(self.0.put(key, maps)),
        }
    }
}

impl Handle {
    /// Enqueues a product for Hopper of no plan, with the tensor maps of the last such call, where its operands have stayed.
    pub(crate) fn sm90_product(&self, call: &Sm90Call<'_>) -> Result<()> {
        let key = call.maps_key();
        // Out of the slot, which is not lent to others meanwhile.
        let mut maps = self.slot::<KeptMaps>().take(&key);
        let enqueued = self.kernels().sm90_product(self.queue(), call, &mut maps);
        self.slot::<KeptMaps>().give_back(key, maps);
        enqueued
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUtensorMap;

    use super::*;
    use crate::format::DType;
    use crate::gpu::device::memory::Span;
    use crate::gpu::kernels::{GroupPlaces, Sm90Along, Sm90Config, Sm90Groups, Sm90Scales, call_of};

    const MNK: [usize; 3] = [256, 384, 1024];

    fn spans(b: u64) -> [Span<'static>; 3] {
        [0x1000, b, 0x2000].map(|address| Span::unguarded(address, 1 << 20))
    }

    /// How many maps were encoded for the call.
    fn encoded(kept: &mut KeptMaps, call: &Sm90Call<'_>) -> usize {
        let (key, mut count) = (call.maps_key(), 0);
        let mut maps = kept.take(&key);
        let made = maps.of(call, call.config.tile(), |_, _, span| {
            count += 1;
            Ok(CUtensorMap { opaque: [span.address; 16] })
        });
        assert_eq!(made.unwrap()[1].opaque[0], call.b.codes.address);
        kept.give_back(key, maps);
        count
    }

    #[test]
    fn layers_of_one_shape_keep_their_maps() {
        let mut kept = KeptMaps::default();
        let layers: Vec<_> = (1..=60).map(|layer| spans(layer << 20)).collect();
        for round in 0..3 {
            for [a, b, d] in &layers {
                assert_eq!(encoded(&mut kept, &call_of([a, b, d], MNK)), if round == 0 { 3 } else { 0 });
            }
        }
        let ([a, b, _], moved) = (&layers[7], Span::unguarded(0x9000, 1 << 20));
        assert_eq!(encoded(&mut kept, &call_of([a, b, &moved], MNK)), 1, "D alone is elsewhere");
        assert_eq!(kept.0.len(), 60);
    }

    #[test]
    fn no_more_are_kept_than_there_are_places() {
        let mut kept = KeptMaps::default();
        let most = KEPT.get() as u64;
        let mut call = |b: u64| {
            let [a, b, d] = spans(b << 20);
            (encoded(&mut kept, &call_of([&a, &b, &d], MNK)), kept.0.len() as u64)
        };
        for b in 1..=most {
            assert_eq!(call(b), (3, b));
        }
        // The first is used again: the second is the longest unused.
        assert_eq!([1, most + 1, 1, 2].map(&mut call), [(0, most), (3, most), (0, most), (3, most)]);
    }

    #[test]
    fn calls_of_other_maps_have_other_keys() {
        let [a, b, d] = spans(0x10_0000);
        let call = || call_of([&a, &b, &d], MNK);
        let counts = Span::unguarded(0x3000, 1 << 10);
        let groups = |along, count| {
            let places = GroupPlaces { groups: count, starts: None, slot_rows: 128, counts: &counts };
            Some(Sm90Groups { along, ..places.into() })
        };
        let rows = |count| Sm90Call { groups: groups(Sm90Along::Rows, count), ..call() };
        let [_, other_b, _] = spans(0x20_0000);
        let calls = [
            call(),
            Sm90Call { config: Sm90Config::Tile64x128, ..call() },
            Sm90Call { m: 128, ..call() },
            Sm90Call { n: 128, ..call() },
            Sm90Call { k: 128, ..call() },
            Sm90Call { d_stride: 512, ..call() },
            Sm90Call { d_type: DType::F32, ..call() },
            Sm90Call { layout: Sm90Scales::Vectors, ..call() },
            Sm90Call { layout: Sm90Scales::Vectors, groups: groups(Sm90Along::K, 2), ..call() },
            rows(2),
            rows(3),
            call_of([&a, &other_b, &d], MNK),
        ];
        let keys: Vec<_> = calls.iter().map(Sm90Call::maps_key).collect();
        // Where A and D lie, and what is no part of a map.
        let [other_a, _, other_d] = [0x7000, 0, 0x8000].map(|address| Span::unguarded(address, 1 << 20));
        assert_eq!(call_of([&other_a, &b, &other_d], MNK).maps_key(), keys[0]);
        assert_eq!(Sm90Call { alpha: 0.5, ..call() }.maps_key(), keys[0]);
        assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), calls.len());
    }

    #[test]
    fn calls_without_maps_take_no_place() {
        let mut kept = KeptMaps::default();
        let [a, b, d] = spans(0x10_0000);
        let key = call_of([&a, &b, &d], MNK).maps_key();
        let maps = kept.take(&key);
        kept.give_back(key, maps);
        assert_eq!(kept.0.len(), 0);
    }

    #[test]
    fn they_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<KeptMaps>();
    }
}
