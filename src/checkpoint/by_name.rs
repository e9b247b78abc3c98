//! [`ByName`]: where the tensor of a name is. Every question about a matrix asks for several names, most of them not there.

use std::hash::{BuildHasher, RandomState};

use super::header::TensorInfo;

/// Bits of a slot that hold a place, counted from 1; 0 is an empty slot. The others are those of the name's hash: they tell most
/// other names apart without a look at them.
const PLACE: u64 = (1 << 40) - 1;

/// Places of tensors in their list, by name. A map with keys would hold every name a second time.
#[derive(Debug, Default)]
pub(super) struct ByName {
    /// A power of two of them, at most half of which are taken; none for no tensors.
    slots: Vec<u64>,
    /// Of this process: nobody can write a file whose names all have one slot.
    hasher: RandomState,
}

impl ByName {
    /// `Err` is the place of a tensor whose name another one before it has.
    pub(super) fn new(tensors: &[TensorInfo]) -> Result<Self, usize> {
        if tensors.is_empty() {
            return Ok(Self::default());
        }
        let mut places = Self { slots: vec![0; 2 * tensors.len().next_power_of_two()], hasher: RandomState::new() };
        for (place, tensor) in tensors.iter().enumerate() {
            match places.find(tensors, &tensor.name) {
                Ok(_) => return Err(place),
                Err((slot, hash)) => places.slots[slot] = hash & !PLACE | (place as u64 + 1),
            }
        }
        Ok(places)
    }

    /// Where the tensor of this name is.
    pub(super) fn get(&self, tensors: &[TensorInfo], name: &str) -> Option<usize> {
        if self.slots.is_empty() { None } else { self.find(tensors, name).ok() }
    }

    /// The place of a name, or the slot that it would take, and its hash.
    fn find(&self, tensors: &[TensorInfo], name: &str) -> Result<usize, (usize, u64)> {
        let hash = self.hasher.hash_one(name);
        let last = self.slots.len() - 1;
        let mut slot = hash as usize & last;
        loop {
            let found = self.slots[slot];
            if found == 0 {
                return Err((slot, hash));
            }
            let place = ((found & PLACE) - 1) as usize;
            if (found ^ hash) & !PLACE == 0 && tensors[place].name == name {
                return Ok(place);
            }
            slot = (slot + 1) & last;
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    fn tensors(names: &[&str]) -> Vec<TensorInfo> {
        let tensor = |name: &&str| TensorInfo {
            name: name.to_string(),
            dtype: Dtype::U8,
            shape: vec![],
            start: 0,
            end: 1,
            file: 0,
        };
        names.iter().map(tensor).collect()
    }

    #[test]
    fn every_name_is_found_and_no_other() {
        for count in [0, 1, 2, 3, 1000] {
            let names: Vec<_> = (0..count).map(|i| format!("layer.{i}.weight")).collect();
            let tensors = tensors(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let places = ByName::new(&tensors).unwrap();
            for (place, name) in names.iter().enumerate() {
                assert_eq!(places.get(&tensors, name), Some(place));
                assert_eq!(places.get(&tensors, &format!("{name}_scale")), None);
            }
            assert_eq!(places.get(&tensors, ""), None);
        }
    }

    #[test]
    fn a_name_that_is_there_twice_is_told() {
        assert_eq!(ByName::new(&tensors(&["a", "b", "", "b", "a"])).unwrap_err(), 3);
    }
}
