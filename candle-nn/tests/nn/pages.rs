//! Pages of texts that come, grow, share, are written and go, in any order.

use candle_nn::kv_cache::{PageCache, PageList};
use proptest::prelude::*;
use std::collections::HashMap;

const PAGE: usize = 16;
const PAGES: usize = 12;

#[derive(Clone, Debug)]
enum Act {
    /// A text of `len` tokens, those of one of few kinds, begins.
    Begin {
        kind: u32,
        len: usize,
    },
    /// The text of this number grows by some positions and writes them.
    Write {
        text: usize,
        count: usize,
    },
    /// Its full pages are kept.
    Keep {
        text: usize,
    },
    /// It ends.
    End {
        text: usize,
    },
    Forget,
}

fn act() -> impl Strategy<Value = Act> {
    let text = 0..6usize;
    prop_oneof![
        3 => (0..3u32, 1..120usize).prop_map(|(kind, len)| Act::Begin { kind, len }),
        5 => (text.clone(), 1..40usize).prop_map(|(text, count)| Act::Write { text, count }),
        3 => text.clone().prop_map(|text| Act::Keep { text }),
        2 => text.prop_map(|text| Act::End { text }),
        1 => Just(Act::Forget),
    ]
}

/// Tokens of a kind: kinds 1 and 2 begin alike for 40 positions.
fn tokens(kind: u32, len: usize) -> Vec<u32> {
    let token = |at: usize| match kind {
        0 => at as u32 % 7,
        _ if at < 40 => 100 + at as u32,
        _ => 1000 * kind + at as u32,
    };
    (0..len).map(token).collect()
}

struct Text {
    tokens: Vec<u32>,
    list: PageList,
    written: usize,
}

#[derive(Default)]
struct Model {
    texts: Vec<Text>,
    /// The tokens from the beginning of a text whose last position each cell of a page holds.
    memory: HashMap<(u32, usize), Vec<u32>>,
}

impl Model {
    fn check(&self, cache: &PageCache) {
        let mut held: Vec<u32> = self
            .texts
            .iter()
            .flat_map(|text| text.list.pages().to_vec())
            .collect();
        held.sort_unstable();
        held.dedup();
        assert_eq!(cache.held(), held.len());
        assert!(cache.kept() + cache.held() <= PAGES);
        for text in &self.texts {
            assert!(text.list.pages().len() * PAGE >= text.written);
            for at in 0..text.written {
                let cell = (text.list.pages()[at / PAGE], at % PAGE);
                let found = self.memory.get(&cell).map(Vec::as_slice);
                assert_eq!(found, Some(&text.tokens[..at + 1]), "position {at}");
            }
        }
    }

    fn run(&mut self, act: &Act, cache: &mut PageCache) {
        match *act {
            Act::Begin { kind, len } => {
                let tokens = tokens(kind, len);
                let shared = cache.shared(&tokens, 1);
                let list = cache.begin(&tokens, 1);
                assert_eq!(list.pages().len() * PAGE, shared);
                self.texts.push(Text {
                    tokens,
                    list,
                    written: shared,
                });
            }
            Act::Write { text, count } => {
                let Some(text) = self.texts.get_mut(text) else {
                    return;
                };
                let end = text.tokens.len().min(text.written + count);
                let missing = end.div_ceil(PAGE).saturating_sub(text.list.pages().len());
                let fits = missing <= cache.available();
                let before = text.list.pages().to_vec();
                assert_eq!(cache.grow(&mut text.list, end), fits);
                if !fits {
                    assert_eq!(text.list.pages(), before);
                    return;
                }
                for at in text.written..end {
                    let cell = (text.list.pages()[at / PAGE], at % PAGE);
                    self.memory.insert(cell, text.tokens[..at + 1].to_vec());
                }
                text.written = end;
            }
            Act::Keep { text } => {
                if let Some(text) = self.texts.get_mut(text) {
                    cache.keep(&text.tokens[..text.written], &mut text.list);
                    assert!(cache.shared(&text.tokens, 1) >= text.written / PAGE * PAGE);
                }
            }
            Act::End { text } => {
                if text < self.texts.len() {
                    cache.release(self.texts.remove(text).list);
                }
            }
            Act::Forget => {
                cache.forget_kept();
                assert_eq!(cache.kept(), 0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Positions that a text wrote or shares stay as they are until it ends, and no page is lost.
    #[test]
    fn texts_keep_their_positions(acts in proptest::collection::vec(act(), 1..60)) {
        let mut cache = PageCache::new(PAGES, PAGE).unwrap();
        let mut model = Model::default();
        for act in &acts {
            model.run(act, &mut cache);
            model.check(&cache);
        }
        for text in model.texts.drain(..) {
            cache.release(text.list);
        }
        prop_assert_eq!((cache.held(), cache.available()), (0, PAGES));
        let mut all = PageList::default();
        prop_assert!(cache.grow(&mut all, PAGES * PAGE));
        prop_assert_eq!(cache.kept(), 0);
        let mut pages = all.pages().to_vec();
        pages.sort_unstable();
        prop_assert_eq!(pages, (0..PAGES as u32).collect::<Vec<_>>());
        cache.release(all);
    }
}

fn kept(cache: &mut PageCache, tokens: &[u32]) -> Vec<u32> {
    let mut list = cache.begin(tokens, 1);
    assert!(cache.grow(&mut list, tokens.len()));
    cache.keep(tokens, &mut list);
    let pages = list.pages().to_vec();
    cache.release(list);
    pages
}

#[test]
fn the_beginning_that_was_used_longest_ago_is_forgotten_first() {
    let mut cache = PageCache::new(4, PAGE).unwrap();
    let (a, b) = (tokens(1, 32), tokens(0, 32));
    kept(&mut cache, &a);
    kept(&mut cache, &b);
    // Used again.
    let again = cache.begin(&a, 1);
    cache.release(again);
    let mut other = PageList::default();
    assert!(cache.grow(&mut other, 1));
    assert_eq!(cache.shared(&a, 1), 32);
    assert_eq!(cache.shared(&b, 1), 16, "its end goes before its beginning");
    assert!(cache.grow(&mut other, 3 * PAGE));
    assert_eq!((cache.shared(&a, 1), cache.shared(&b, 1)), (16, 0));
    assert!(cache.grow(&mut other, 4 * PAGE));
    assert!(!cache.grow(&mut other, 4 * PAGE + 1));
    cache.release(other);
}

#[test]
fn texts_that_read_the_same_at_once_end_with_the_same_pages() {
    let mut cache = PageCache::new(8, PAGE).unwrap();
    let all = tokens(1, 64);
    let [mut one, mut two] = [PageList::default(), PageList::default()];
    assert!(cache.grow(&mut one, 40) && cache.grow(&mut two, 40));
    assert_eq!(cache.held(), 6);
    cache.keep(&all[..32], &mut one);
    cache.keep(&all[..32], &mut two);
    assert_eq!(one.pages()[..2], two.pages()[..2]);
    assert_ne!(one.pages()[2], two.pages()[2], "it is not full");
    assert_eq!(cache.held(), 4);
    cache.release(one);
    assert_eq!((cache.held(), cache.kept()), (3, 0));
    cache.release(two);
    assert_eq!((cache.held(), cache.kept()), (0, 2));
}

#[test]
fn what_is_shared_is_whole_steps() {
    let mut cache = PageCache::new(8, PAGE).unwrap();
    let all = tokens(0, 80);
    kept(&mut cache, &all);
    for (step, expected) in [(1, 80), (16, 80), (32, 64), (48, 48), (24, 48), (128, 0)] {
        assert_eq!(cache.shared(&all, step), expected, "{step}");
    }
}

#[test]
fn sizes_without_a_meaning_are_refused() {
    for (pages, page) in [(0, 16), (4, 0), (4, 8), (4, 128), (4, 24)] {
        assert!(PageCache::new(pages, page).is_err(), "{pages} of {page}");
    }
}
