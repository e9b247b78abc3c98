//! What the crate tells of its launches.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};

/// The fields of an event, by name, as text.
pub type Fields = BTreeMap<&'static str, String>;

/// The events of modules whose paths end so, in their order, while `work` runs.
pub fn told<T>(module: &'static str, work: impl FnOnce() -> T) -> (T, Vec<Fields>) {
    // Where there is one subscriber, tracing asks only that of the thread that comes to an event first whether anybody wants it: a test beside this one has none, and its answer would hold for
    // all. With two, it asks both.
    static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| tracing::Dispatch::new(Told::of("")));
    LazyLock::force(&ANOTHER);
    let told = Told::of(module);
    let done = tracing::subscriber::with_default(told.clone(), work);
    let events = std::mem::take(&mut *told.events.lock().unwrap());
    (done, events)
}

#[derive(Clone)]
struct Told {
    module: &'static str,
    events: Arc<Mutex<Vec<Fields>>>,
}

impl Told {
    fn of(module: &'static str) -> Self {
        Self { module, events: Arc::default() }
    }
}

impl tracing::Subscriber for Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().ends_with(self.module)
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct AsText(Fields);
        impl Visit for AsText {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_string());
            }
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut fields = AsText(Fields::new());
        event.record(&mut fields);
        self.events.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
