//! The entries of a JSON object as they come, also those whose name is there before: a tree would keep the last of them, and take
//! many times the text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// What an object holds, in words: `an object of ...`, `layer`, `a number`.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) object: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
}

/// Calls `add` for each entry of an object. The first `Err` ends it, with its words.
pub(crate) fn each_entry<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    reader: D,
    words: Words,
    add: impl FnMut(String, V) -> Result<(), String>,
) -> Result<(), D::Error> {
    reader.deserialize_map(Object { words, add, value: PhantomData })
}

struct Object<F, V> {
    words: Words,
    add: F,
    value: PhantomData<V>,
}

impl<'de, V: Deserialize<'de>, F: FnMut(String, V) -> Result<(), String>> Visitor<'de> for Object<F, V> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words.object)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let Words { key, value: what, .. } = self.words;
            let value = map.next_value().map_err(|e| A::Error::custom(format!("{key} {name:?} is not {what}: {e}")))?;
            (self.add)(name, value).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}
