//! Keys and values in pages, which rows of the batch find through a table.

use super::{in_graph, Dims, Rules, CPU_MATMUL_FROM, NAME};
use crate::ops::zeros_of;
use candle_core::{bail, DType, Error, Result, Tensor};

/// Keys and values in pages of a pool that all rows of a batch share.
///
/// The pools `k` and `v` are (1, kv_heads, pages * page, dim). Key `i` of a row is at position
/// `table[row][i / page] * page + i % page` of the pools.
#[derive(Debug, Clone, Copy)]
pub struct SdpaPages<'a> {
    /// (batch, columns) of u32, with `columns * page` of at least `keys`. Entries behind a row's last key are not used, but must be pages
    /// of the pools too.
    pub table: &'a Tensor,
    /// Positions of a page, a power of two.
    pub page: usize,
    /// Keys of the longest row.
    pub keys: usize,
}

/// The pages with their pools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paged<'a> {
    pub(crate) pages: SdpaPages<'a>,
    pools: [&'a Tensor; 2],
}

impl<'a> Paged<'a> {
    /// Checks that the table and the pools fit each other and `batch` rows.
    pub(super) fn new(pages: SdpaPages<'a>, [k, v]: [&'a Tensor; 2], batch: usize) -> Result<Self> {
        let SdpaPages { table, page, keys } = pages;
        let (pools, _, positions, _) = k.dims4()?;
        let (v_pools, _, v_positions, _) = v.dims4()?;
        let columns = match table.dims() {
            [rows, columns] if *rows == batch && table.dtype() == DType::U32 => *columns,
            found => bail!(
                "{NAME}: the table of pages is {found:?} of {}; for a batch of {batch} it must be ({batch}, columns) of u32",
                table.dtype().as_str()
            ),
        };
        let fits = page.is_power_of_two()
            && (pools, v_pools, v_positions) == (1, 1, positions)
            && positions.is_multiple_of(page)
            && keys <= positions
            && keys <= columns.saturating_mul(page);
        if !fits {
            bail!(
                "{NAME}: {keys} keys in {columns} pages of {page} do not fit pools of {:?} and {:?}: they must be (1, kv_heads, pages * \
                 page, dim), with a page of a power of two",
                k.dims(),
                v.dims()
            )
        }
        if !table.device().same_device(k.device()) {
            return Err(Error::DeviceMismatchBinaryOp {
                lhs: k.device().location(),
                rhs: table.device().location(),
                op: NAME,
            }
            .bt());
        }
        Ok(Self {
            pages,
            pools: [k, v],
        })
    }

    /// The number of pages in the pools.
    pub(crate) fn count(&self) -> Result<usize> {
        Ok(self.pools[0].dim(2)? / self.pages.page)
    }

    /// The pools in the shapes of keys and values of a batch. Which elements belong to a row only the table says.
    pub(super) fn views(&self, batch: usize) -> Result<[Tensor; 2]> {
        let view = |pool: &Tensor| {
            let (_, heads, _, dim) = pool.dims4()?;
            let keys = self.pages.keys;
            pool.narrow(2, 0, keys)?.expand((batch, heads, keys, dim))
        };
        Ok([view(self.pools[0])?, view(self.pools[1])?])
    }

    /// Copies of all rows' keys and values, (batch, kv_heads, keys, dim).
    pub(super) fn gathered(&self) -> Result<[Tensor; 2]> {
        let SdpaPages { table, page, keys } = self.pages;
        let (batch, columns) = table.dims2()?;
        let first = (table.to_dtype(DType::I64)? * page as f64)?.unsqueeze(2)?;
        let steps = Tensor::arange(0, page as i64, table.device())?.reshape((1, 1, page))?;
        let rows = first
            .broadcast_add(&steps)?
            .reshape((batch, columns * page))?;
        let rows = rows
            .narrow(1, 0, keys)?
            .to_dtype(DType::U32)?
            .flatten_all()?;
        let gather = |pool: &Tensor| {
            let (_, heads, _, dim) = pool.dims4()?;
            let all = pool.index_select(&rows, 2)?;
            all.reshape((heads, batch, keys, dim))?.transpose(0, 1)
        };
        Ok([gather(self.pools[0])?, gather(self.pools[1])?])
    }
}

/// As [`super::attend`], with keys and values in pages. The CPU's matrix products for many queries, and gradients, take copies.
pub(super) fn attend(q: &Tensor, paged: Paged<'_>, rules: &Rules<'_>) -> Result<Tensor> {
    let (batch, _, queries, _) = q.dims4()?;
    let [k, v] = paged.views(batch)?;
    let dims = Dims::check(q, &k, &v, rules)?;
    let tensors = rules.tensors(q, &k, &v);
    if dims.is_empty() {
        return zeros_of(dims.output(), q, &tensors);
    }
    if in_graph(&tensors) || q.device().is_cpu() && queries >= CPU_MATMUL_FROM {
        let [k, v] = paged.gathered()?;
        return super::attend(q, &k, &v, rules);
    }
    let rules = Rules {
        paged: Some(paged),
        ..*rules
    };
    super::fused(q, &k, &v, &rules, &dims)
}
