//! The models that write texts, loaded on request and within a budget of memory.

use super::grammar::Grammars;
use super::{ApiError, Error, Result};
use candle_engine::batch::BatchEngine;
use candle_engine::model::ChatTemplate;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time between two looks at whether a model that has to go has answered its last request.
const LOOK: Duration = Duration::from_millis(10);

/// A model that can be loaded again and again.
pub struct TextSource {
    /// The name that clients use.
    pub name: String,
    /// The size of its weights in bytes.
    pub bytes: u64,
    /// Loads it, with the template that makes a prompt of a conversation.
    #[allow(clippy::type_complexity)]
    pub load:
        Box<dyn Fn() -> candle_engine::Result<(BatchEngine, Option<ChatTemplate>)> + Send + Sync>,
}

/// The models of a server.
pub struct Texts(Arc<Shelf>);

struct Shelf {
    slots: Vec<Slot>,
    /// The most bytes of weights that are loaded at once.
    budget: Option<u64>,
    /// Held while a model loads.
    loading: Arc<tokio::sync::Mutex<()>>,
    clock: AtomicU64,
}

struct Slot {
    source: Option<TextSource>,
    name: String,
    bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    model: Option<Arc<TextModel>>,
    /// When a request last named it.
    used: u64,
}

/// A model that is loaded.
pub(super) struct TextModel {
    pub(super) name: String,
    pub(super) engine: BatchEngine,
    pub(super) template: Option<ChatTemplate>,
    pub(super) grammars: Grammars,
}

impl TextModel {
    fn new(name: &str, engine: BatchEngine, template: Option<ChatTemplate>) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_string(),
            engine,
            template,
            grammars: Grammars::default(),
        })
    }
}

impl Slot {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // A state is never half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Texts {
    /// One model, which stays.
    pub fn one(name: &str, engine: BatchEngine, template: Option<ChatTemplate>) -> Self {
        let state = State {
            model: Some(TextModel::new(name, engine, template)),
            used: 0,
        };
        let slot = Slot {
            source: None,
            name: name.to_string(),
            bytes: 0,
            state: Mutex::new(state),
        };
        Self::of(vec![slot], None)
    }

    /// Several models, with at most `budget` bytes of weights loaded at once: a requested model replaces the least recently used ones,
    /// after their answers have ended. Without a budget, a loaded model stays loaded.
    ///
    /// # Errors
    /// No model, two of one name, or one that is larger than the budget.
    pub fn several(sources: Vec<TextSource>, budget: Option<u64>) -> Result<Self> {
        if sources.is_empty() {
            return Err(Error::Models(
                "found none; expected at least one".to_string(),
            ));
        }
        for (at, source) in sources.iter().enumerate() {
            let name = &source.name;
            if sources[..at].iter().any(|other| other.name == *name) {
                return Err(Error::Models(format!(
                    "two models have the name {name:?}; name one of them"
                )));
            }
            if let Some(budget) = budget.filter(|budget| source.bytes > *budget) {
                let (needed, budget) = (megabytes(source.bytes), megabytes(budget));
                return Err(Error::Models(format!(
                    "{name} needs {needed}, more than the budget of {budget}; raise --memory"
                )));
            }
        }
        let slot = |source: TextSource| Slot {
            name: source.name.clone(),
            bytes: source.bytes,
            source: Some(source),
            state: Mutex::default(),
        };
        Ok(Self::of(sources.into_iter().map(slot).collect(), budget))
    }

    fn of(slots: Vec<Slot>, budget: Option<u64>) -> Self {
        Self(Arc::new(Shelf {
            slots,
            budget,
            loading: Arc::default(),
            clock: AtomicU64::new(0),
        }))
    }

    /// Loads the models in their order until the budget is spent.
    ///
    /// # Errors
    /// The first that cannot be loaded.
    pub fn load_ahead(&self) -> Result<()> {
        for at in 0..self.0.slots.len() {
            let room = self
                .0
                .budget
                .is_none_or(|budget| self.0.loaded_bytes() + self.0.slots[at].bytes <= budget);
            if room && self.0.model(at).is_none() {
                self.0.load(at)?;
            }
        }
        Ok(())
    }

    /// The names, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.slots.iter().map(|slot| slot.name.as_str())
    }

    /// Those that are loaded.
    pub(super) fn loaded(&self) -> Vec<Arc<TextModel>> {
        let models = self
            .0
            .slots
            .iter()
            .filter_map(|slot| slot.state().model.clone());
        models.collect()
    }

    /// The reason why an engine has failed, if one has.
    pub(super) fn failure(&self) -> Option<String> {
        self.loaded()
            .iter()
            .find_map(|model| model.engine.failure())
    }

    /// The model `name`, or the first one; none of that name is none.
    ///
    /// # Errors
    /// It is not loaded: [`ApiError::absent`] says which to load.
    pub(super) fn model(
        &self,
        name: Option<&str>,
    ) -> Option<std::result::Result<Arc<TextModel>, ApiError>> {
        let at = match name {
            None => 0,
            Some(name) => self.names().position(|known| known == name)?,
        };
        let absent = || ApiError::not_loaded(at, &self.0.slots[at].name);
        Some(self.0.model(at).ok_or_else(absent))
    }

    /// Loads a model, when those before it in the queue are done and there is room. It stays at least as long as the answer is held.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(super) async fn load(&self, at: usize) -> std::result::Result<Arc<TextModel>, ApiError> {
        let shelf = self.0.clone();
        // Continues without the client: a load that has begun must end in order.
        let loading = tokio::spawn(async move {
            let _turn = shelf.loading.clone().lock_owned().await;
            if let Some(model) = shelf.model(at) {
                return Ok(model);
            }
            shelf.make_room(at).await;
            let load = move || shelf.load(at);
            let loaded = tokio::task::spawn_blocking(load).await;
            loaded
                .map_err(|_| ApiError::panicked())?
                .map_err(ApiError::from)
        });
        loading.await.map_err(|_| ApiError::panicked())?
    }
}

impl Shelf {
    fn model(&self, at: usize) -> Option<Arc<TextModel>> {
        let mut state = self.slots[at].state();
        state.used = self.clock.fetch_add(1, Ordering::Relaxed);
        state.model.clone()
    }

    fn loaded_bytes(&self) -> u64 {
        let loaded = self
            .slots
            .iter()
            .filter(|slot| slot.state().model.is_some());
        loaded.map(|slot| slot.bytes).sum()
    }

    /// Unloads models until there is room for another.
    async fn make_room(&self, at: usize) {
        let Some(budget) = self.budget else {
            return;
        };
        while self.loaded_bytes() + self.slots[at].bytes > budget {
            let loaded = self
                .slots
                .iter()
                .filter(|slot| slot.state().model.is_some());
            let Some(oldest) = loaded.min_by_key(|slot| slot.state().used) else {
                return;
            };
            // Nobody gets it any more; who has it keeps it until the answer is out.
            let Some(mut model) = oldest.state().model.take() else {
                continue;
            };
            tracing::info!("unloading {}", oldest.name);
            loop {
                match Arc::try_unwrap(model) {
                    Ok(last) => {
                        let _ = tokio::task::spawn_blocking(move || drop(last)).await;
                        break;
                    }
                    Err(held) => model = held,
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    fn load(&self, at: usize) -> candle_engine::Result<Arc<TextModel>> {
        let slot = &self.slots[at];
        let Some(source) = &slot.source else {
            let gone = format!("{} was unloaded", slot.name);
            return Err(candle_engine::Error::Batch(gone));
        };
        let (engine, template) = (source.load)()?;
        let model = TextModel::new(&slot.name, engine, template);
        slot.state().model = Some(model.clone());
        Ok(model)
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::{TextSource, Texts};
    use candle_engine::batch::testing::small_model;
    use candle_engine::batch::{BatchEngine, BatchSettings};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::Arc;
    use std::time::Duration;

    fn source(name: &str, bytes: u64, loads: &Arc<AtomicUsize>) -> TextSource {
        let loads = loads.clone();
        TextSource {
            name: name.to_string(),
            bytes,
            load: Box::new(move || {
                loads.fetch_add(1, SeqCst);
                Ok((
                    BatchEngine::new(small_model(), BatchSettings::default())?,
                    None,
                ))
            }),
        }
    }

    fn loaded(texts: &Texts) -> Vec<String> {
        texts
            .loaded()
            .iter()
            .map(|model| model.name.clone())
            .collect()
    }

    #[test]
    fn models_make_room_for_each_other() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let loads = Arc::new(AtomicUsize::new(0));
        let sources = ["a", "b", "c"].map(|name| source(name, 40, &loads));
        let texts = Texts::several(sources.into(), Some(100)).unwrap();
        texts.load_ahead().unwrap();
        assert_eq!(loaded(&texts), ["a", "b"]);
        assert!(texts.model(Some("d")).is_none());
        // `a` is newer now, so `b` goes.
        let a = texts.model(Some("a")).unwrap().unwrap();
        let absent = texts.model(Some("c")).unwrap().err().unwrap();
        assert_eq!(absent.absent(), Some(2));
        runtime.block_on(async {
            texts.load(2).await.unwrap();
            assert_eq!(loaded(&texts), ["a", "c"]);
            assert_eq!(loads.load(SeqCst), 3);
            // `a` is the oldest, and is waited for while it is in use.
            let waits = texts.load(1);
            let held = tokio::time::timeout(Duration::from_millis(100), waits).await;
            assert!(held.is_err(), "more than the budget was loaded");
            assert_eq!(loaded(&texts), ["c"]);
            drop(a);
            // Two concurrent requests load the model once.
            let (one, two) = tokio::join!(texts.load(1), texts.load(1));
            assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        });
        assert_eq!(loaded(&texts), ["b", "c"]);
        assert_eq!(loads.load(SeqCst), 4);
    }

    #[test]
    fn models_that_do_not_fit_are_refused() {
        let loads = Arc::default();
        let of = |all: &[(&str, u64)], budget| {
            let sources = all.iter().map(|(name, bytes)| source(name, *bytes, &loads));
            Texts::several(sources.collect(), budget)
                .err()
                .map(|error| error.to_string())
        };
        assert!(of(&[("a", 1), ("b", 1)], None).is_none());
        assert!(of(&[], None).unwrap().contains("at least one"));
        assert!(of(&[("a", 1), ("a", 1)], None)
            .unwrap()
            .contains("two models"));
        let large = of(&[("a", 2_000_000)], Some(1_000_000)).unwrap();
        assert!(
            large.contains("a needs 2.0 MB") && large.contains("--memory"),
            "{large}"
        );
    }
}
