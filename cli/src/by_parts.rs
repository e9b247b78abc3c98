//! Values by names that have dots between their parts, looked up for what is around a name.

use std::collections::HashMap;

/// Names are kept part by part: to look up everything around a name by its whole name takes time that grows with the square of that.
pub struct ByParts<'a, V> {
    /// The place of a part in the place of what is around it. The first of all is 0.
    places: HashMap<(usize, &'a str), usize>,
    /// What is at each place.
    values: Vec<Option<V>>,
}

impl<'a, V> ByParts<'a, V> {
    pub fn new(all: impl IntoIterator<Item = (&'a str, V)>) -> Self {
        let (mut places, mut values) = (HashMap::new(), vec![None]);
        for (name, value) in all {
            let mut at = 0;
            for part in name.split('.') {
                at = *places.entry((at, part)).or_insert(values.len());
                if at == values.len() {
                    values.push(None);
                }
            }
            values[at] = Some(value);
        }
        Self { places, values }
    }

    /// What there is of the names around this one, and of itself, with the length of each name; the outermost first.
    pub fn around(&self, name: &str) -> impl Iterator<Item = (usize, &V)> {
        let ends = name.match_indices('.').map(|(dot, _)| dot).chain([name.len()]);
        let (mut at, mut start) = (0, 0);
        let places = ends.map_while(move |end| {
            at = *self.places.get(&(at, &name[start..end]))?;
            start = end + 1;
            Some((end, at))
        });
        places.filter_map(|(end, at)| Some((end, self.values[at].as_ref()?)))
    }

    /// True where there is something of a name around this one.
    pub fn is_within(&self, name: &str) -> bool {
        self.around(name).any(|(end, _)| end < name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_around_a_name() {
        let names = ["", "a", "a.b", "a.b.c.d", "a..b", ".x", "b.c.", "ab"];
        let by_name = ByParts::new(names.into_iter().map(|name| (name, name)));
        for name in ["a.b.c", "a.b.c.d.e", "a", "ab.c", "a.", "a..b", "a..", ".x.y", ".z", "b.c", "b.c..d", "", "c.a.b"]
        {
            let around = name.match_indices('.').map(|(dot, _)| &name[..dot]).filter(|name| names.contains(name));
            let around: Vec<&str> = around.collect();
            assert_eq!(by_name.is_within(name), !around.is_empty(), "{name:?}");
            let found: Vec<_> = by_name.around(name).map(|(end, found)| (end, *found)).collect();
            let own = names.contains(&name).then_some(name);
            let wanted: Vec<_> = around.into_iter().chain(own).map(|name| (name.len(), name)).collect();
            assert_eq!(found, wanted, "{name:?}");
        }
        assert_eq!(ByParts::<()>::new([]).around("a.b").next(), None);
    }
}
