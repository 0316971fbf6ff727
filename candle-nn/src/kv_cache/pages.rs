//! Pages of a KV cache: which text has which page, and which beginnings can be used again.
//!
//! [`PageCache`] counts; it has no tensors. A text has a [`PageList`], whose page `i` holds the text's positions `i * page ..
//! (i + 1) * page`. Full pages can be kept under their tokens in a radix tree with an edge per page. A later text that begins with
//! the same tokens gets the same pages. A kept page that no text has is freed when pages are needed, the least recently used one first.

use std::collections::{BTreeSet, HashMap};

use candle_core::{bail, Result};

/// Sizes of a page, in positions.
pub const PAGE_SIZES: [usize; 3] = [16, 32, 64];

/// The pages of one text, in the order of its positions. [`PageCache::release`] returns them.
#[derive(Debug, Default)]
pub struct PageList {
    pages: Vec<u32>,
}

impl PageList {
    /// The numbers of the pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

/// A kept page: an edge of the radix tree and the node at its end.
#[derive(Debug)]
struct Node {
    parent: Option<u32>,
    tokens: Box<[u32]>,
    children: HashMap<Box<[u32]>, u32>,
    used: u64,
}

/// Allocator of pages with a radix tree of those whose tokens are known.
#[derive(Debug)]
pub struct PageCache {
    page: usize,
    /// Texts that have each page.
    holders: Vec<u32>,
    /// The node of each kept page.
    nodes: Vec<Option<Node>>,
    roots: HashMap<Box<[u32]>, u32>,
    free: Vec<u32>,
    /// Kept pages without holders and children: time of the last use, page.
    leaves: BTreeSet<(u64, u32)>,
    /// Kept pages without holders.
    idle: usize,
    clock: u64,
}

impl PageCache {
    /// `pages` free pages, numbered from 0, of `page` positions each.
    ///
    /// # Errors
    /// No pages, 2^32 pages or more, or a size that is not one of [`PAGE_SIZES`].
    pub fn new(pages: usize, page: usize) -> Result<Self> {
        if !PAGE_SIZES.contains(&page) {
            bail!("page cache: a page of {page} positions; it must be one of {PAGE_SIZES:?}")
        }
        let Some(count) = u32::try_from(pages).ok().filter(|count| *count > 0) else {
            bail!("page cache: {pages} pages; there must be from 1 to 2^32 - 1")
        };
        Ok(Self {
            page,
            holders: vec![0; pages],
            nodes: (0..pages).map(|_| None).collect(),
            roots: HashMap::new(),
            free: (0..count).rev().collect(),
            leaves: BTreeSet::new(),
            idle: 0,
            clock: 0,
        })
    }

    /// Positions of a page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Number of all pages.
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Number of pages that texts have. A page that several texts share counts once.
    pub fn held(&self) -> usize {
        self.total() - self.available()
    }

    /// Number of pages that only the tree keeps.
    pub fn kept(&self) -> usize {
        self.idle
    }

    /// Number of pages that [`grow`](Self::grow) can hand out: the free ones and those that only the tree keeps.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Pages for `positions` positions.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page)
    }

    /// Number of the first positions of `tokens` that [`begin`](Self::begin) would share.
    pub fn shared(&self, tokens: &[u32], step: usize) -> usize {
        self.matching(tokens, step).len() * self.page
    }

    /// The pages of the longest kept beginning of `tokens` whose number of positions is a multiple of `step`.
    pub fn begin(&mut self, tokens: &[u32], step: usize) -> PageList {
        let pages = self.matching(tokens, step);
        for page in &pages {
            self.hold(*page);
        }
        PageList { pages }
    }

    fn matching(&self, tokens: &[u32], step: usize) -> Vec<u32> {
        let mut pages = Vec::new();
        let mut children = &self.roots;
        for tokens in tokens.chunks_exact(self.page) {
            let Some(page) = children.get(tokens) else {
                break;
            };
            let Some(node) = &self.nodes[*page as usize] else {
                break;
            };
            pages.push(*page);
            children = &node.children;
        }
        while !(pages.len() * self.page).is_multiple_of(step.max(1)) {
            pages.pop();
        }
        pages
    }

    /// Adds pages until `list` has room for `positions`. False, and nothing changes, if there are too few pages.
    #[must_use]
    pub fn grow(&mut self, list: &mut PageList, positions: usize) -> bool {
        let missing = self.pages_for(positions).saturating_sub(list.pages.len());
        if missing > self.available() {
            return false;
        }
        while self.free.len() < missing && self.forget_oldest() {}
        for _ in 0..missing {
            if let Some(page) = self.free.pop() {
                self.holders[page as usize] = 1;
                list.pages.push(page);
            }
        }
        true
    }

    /// Returns the pages of `list` behind those of its first `positions`.
    pub fn cut(&mut self, list: &mut PageList, positions: usize) {
        let kept = self.pages_for(positions);
        // The last one first: a page is used no later than those before it.
        while list.pages.len() > kept {
            if let Some(page) = list.pages.pop() {
                self.let_go(page);
            }
        }
    }

    /// Returns all pages of a text. Those that the tree keeps can be shared until their memory is needed.
    pub fn release(&mut self, mut list: PageList) {
        self.cut(&mut list, 0);
    }

    /// Keeps the full pages of the first positions of `list`, which hold `tokens`. Where the tree has a page of the same beginning already,
    /// `list` gets that page instead: both hold the same keys and values.
    pub fn keep(&mut self, tokens: &[u32], list: &mut PageList) {
        let mut parent = None;
        let full = tokens.chunks_exact(self.page);
        for (at, tokens) in full.enumerate().take(list.pages.len()) {
            let own = list.pages[at];
            let known = self.children(parent).and_then(|it| it.get(tokens)).copied();
            let page = match known {
                Some(page) => page,
                None => {
                    self.nodes[own as usize] = Some(Node {
                        parent,
                        tokens: tokens.into(),
                        children: HashMap::new(),
                        used: self.clock,
                    });
                    if let Some(children) = self.children_mut(parent) {
                        children.insert(tokens.into(), own);
                    }
                    own
                }
            };
            if page != own {
                self.hold(page);
                self.let_go(own);
                list.pages[at] = page;
            }
            parent = Some(page);
        }
    }

    /// Frees all pages that only the tree keeps.
    pub fn forget_kept(&mut self) {
        while self.forget_oldest() {}
    }

    fn children(&self, parent: Option<u32>) -> Option<&HashMap<Box<[u32]>, u32>> {
        match parent {
            None => Some(&self.roots),
            Some(page) => self.nodes[page as usize]
                .as_ref()
                .map(|node| &node.children),
        }
    }

    fn children_mut(&mut self, parent: Option<u32>) -> Option<&mut HashMap<Box<[u32]>, u32>> {
        match parent {
            None => Some(&mut self.roots),
            Some(page) => self.nodes[page as usize]
                .as_mut()
                .map(|node| &mut node.children),
        }
    }

    fn hold(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders += 1;
        if *holders == 1 {
            if let Some(node) = &self.nodes[page as usize] {
                self.idle -= 1;
                self.leaves.remove(&(node.used, page));
            }
        }
    }

    fn let_go(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.clock += 1;
        match &mut self.nodes[page as usize] {
            None => self.free.push(page),
            Some(node) => {
                node.used = self.clock;
                self.idle += 1;
                if node.children.is_empty() {
                    self.leaves.insert((node.used, page));
                }
            }
        }
    }

    /// Frees the leaf that was used longest ago; false if there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, page)) = self.leaves.pop_first() else {
            return false;
        };
        let Some(node) = self.nodes[page as usize].take() else {
            return false;
        };
        self.idle -= 1;
        self.free.push(page);
        if let Some(children) = self.children_mut(node.parent) {
            children.remove(&node.tokens);
        }
        // Its parent may be a leaf now.
        if let Some(parent) = node.parent {
            let is_idle = self.holders[parent as usize] == 0;
            let above = self.nodes[parent as usize].as_ref();
            if let Some(above) = above.filter(|it| is_idle && it.children.is_empty()) {
                self.leaves.insert((above.used, parent));
            }
        }
        true
    }
}
