// A tile of TILE_M x TILE_N of dst in DOWN by ACROSS subgroups of 32, each with ROWS x COLS cooperative matrices of 16 x 16. Both operands
// are staged through workgroup memory, DEPTH deep; rows are padded against bank conflicts. An invocation loads eight elements of lhs, and
// EIGHTS times eight of rhs, at a time. rhs is dense or blocks, which `rhs_eight` dequantises between registers and workgroup memory; its
// tile has rows of k, or with RHS_OUTER rows of n. While a step is multiplied, the loads of the next one to
// registers are in flight; with two BUFFERS it is stored while other subgroups still read the last one. Parts of `k` have separate results.
//
// Loops to ROWS, COLS, LHS_LOADS and RHS_LOADS are unrolled, and their arrays are variables (unroll.rs): naga does not support arrays of
// cooperative matrices, and arrays of loads would not stay in registers.

const TILE_M = DOWN * ROWS * 16u;
const TILE_N = ACROSS * COLS * 16u;
const WG = DOWN * ACROSS * 32u;
const PITCH = DEPTH / 4u + 2u;
// Rows of each tile that the workgroup loads at once.
const STEP = WG / (DEPTH / 8u);
const RHS_PER_ROW = RHS_EIGHTS / EIGHTS;
const RHS_STEP = WG / RHS_PER_ROW;
// SLOTS adjacent matrices of a subgroup, whose elements are located by row and column.
const SLOT_PITCH = SLOTS * 16u + SLOT_PAD;
const_assert LHS_LOADS * STEP == TILE_M && RHS_LOADS * EIGHTS * WG * 8u == TILE_N * DEPTH && COLS % SLOTS == 0u;

var<workgroup> lhs_tile: array<vec4<Half>, BUFFERS * TILE_M * PITCH>;
var<workgroup> rhs_tile: array<vec4<Half>, BUFFERS * RHS_TILE>;
var<workgroup> fragments: array<f32, DOWN * ACROSS * 16u * SLOT_PITCH>;

// The stride of rhs over k.
fn rhs_k() -> u32 {
  return select(1u, p.rhs_col, RHS_OUTER);
}

// Writes a subgroup's slots; their rows and columns may extend past those of dst.
fn put_slots(part: u32, rows: u32, first_row: u32, first_col: u32, slots: u32, lane: u32) {
  const WORDS = SLOTS * 16u / DST_LANES;
  for (var word = lane; word < 16u * WORDS; word += 32u) {
    let row = first_row + word / WORDS;
    let col = first_col + word % WORDS * DST_LANES;
    let slot = slots + word / WORDS * SLOT_PITCH + word % WORDS * DST_LANES;
    if (row < rows && col < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var i = 0u; i < DST_LANES; i++) {
        lanes[i] = finish(part * p.m + row, col + i, scaled(fragments[slot + i], row, col + i));
      }
      dst_put(dst_place(part, row, col) / DST_LANES, lanes);
    }
  }
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  // Tiles down the rows come first: they read the same columns of rhs, while those are in the cache.
  let tiles_m = (p.m + TILE_M - 1u) / TILE_M;
  let tiles_n = (p.n + TILE_N - 1u) / TILE_N;
  let tile = flat(workgroup, workgroups, 0u, 1u);
  // Cooperative matrices need uniform control flow, which naga does not see past a return: workgroups beyond the last tile
  // do its work again, without rows to write.
  let parts = p.batch * p.splits;
  let part = min(tile / (tiles_m * tiles_n), parts - 1u);
  let rows = select(0u, p.m, tile < tiles_m * tiles_n * parts);
  let batch = part % p.batch;
  let k_first = part / p.batch * p.chunk;
  let k_last = min(k_first + p.chunk, p.k);
  let m0 = tile % tiles_m * TILE_M;
  let n0 = tile / tiles_m % tiles_n * TILE_N;

  // Loads of an invocation: the same elements of every STEP-th row. Past the last row it loads that row again; the sums are not stored.
  let r = local / (DEPTH / 8u);
  let c = local % (DEPTH / 8u);
  let lhs_first = lhs_offset(batch) + c * 8u;
  let rhs_r = local / RHS_PER_ROW;
  let rhs_c = local % RHS_PER_ROW * EIGHTS;
  var lhs_at: array<u32, LHS_LOADS>;
  var rhs_at: array<u32, RHS_LOADS>;
  var next_lhs: array<Eight, LHS_LOADS>;
  var next_rhs: array<RhsLoad, RHS_LOADS>;
  for (var i = 0u; i < LHS_LOADS; i++) {
    lhs_at[i] = lhs_first + min(m0 + r + i * STEP, p.m - 1u) * p.lhs_row;
    next_lhs[i] = lhs[(lhs_at[i] + k_first) / 8u];
  }
  for (var i = 0u; i < RHS_LOADS; i++) {
    if (RHS_OUTER) {
      rhs_at[i] = rhs_offset(batch) + (rhs_r + i * RHS_STEP) * p.rhs_col + min(n0 + rhs_c * 8u, p.n - 8u);
    } else {
      rhs_at[i] = rhs_offset(batch) + min(n0 + rhs_r + i * RHS_STEP, p.n - 1u) * p.rhs_row + rhs_c * 8u;
    }
    next_rhs[i] = rhs_load(rhs_at[i] + k_first * rhs_k());
  }

  // The subgroup's first row and column of the tile, and its sums.
  let row = subgroup / ACROSS * ROWS * 16u;
  let col = subgroup % ACROSS * COLS * 16u;
  var sums: array<coop_mat16x16<f32, C>, ROWS * COLS>;
  var a: array<coop_mat16x16<f16, A>, ROWS>;
  var b: array<coop_mat16x16<f16, B>, COLS>;
  var lhs_buffer = 0u;
  var rhs_buffer = 0u;
  for (var k = k_first; k < k_last; k += DEPTH) {
    let place = r * PITCH + c * 2u;
    for (var i = 0u; i < LHS_LOADS; i++) {
      lhs_tile[lhs_buffer + place + i * STEP * PITCH] = next_lhs[i].low;
      lhs_tile[lhs_buffer + place + i * STEP * PITCH + 1u] = next_lhs[i].high;
    }
    let rhs_place = rhs_r * RHS_PITCH + rhs_c * 2u;
    for (var i = 0u; i < RHS_LOADS; i++) {
      for (var j = 0u; j < EIGHTS; j++) {
        let eight = rhs_eight(next_rhs[i], j);
        rhs_tile[rhs_buffer + rhs_place + i * RHS_STEP * RHS_PITCH + j * 2u] = eight.low;
        rhs_tile[rhs_buffer + rhs_place + i * RHS_STEP * RHS_PITCH + j * 2u + 1u] = eight.high;
      }
    }
    workgroupBarrier();
    // After the last step there is none to load; it is loaded again.
    let next = min(k + DEPTH, k_last - DEPTH);
    for (var i = 0u; i < LHS_LOADS; i++) {
      next_lhs[i] = lhs[(lhs_at[i] + next) / 8u];
    }
    for (var i = 0u; i < RHS_LOADS; i++) {
      next_rhs[i] = rhs_load(rhs_at[i] + next * rhs_k());
    }
    for (var at = 0u; at < DEPTH; at += 16u) {
      for (var i = 0u; i < ROWS; i++) {
        a[i] = coopLoadT<coop_mat16x16<f16, A>>(&lhs_tile[lhs_buffer + (row + i * 16u) * PITCH + at / 4u], PITCH);
      }
      for (var j = 0u; j < COLS; j++) {
        if (RHS_OUTER) {
          b[j] = coopLoadT<coop_mat16x16<f16, B>>(&rhs_tile[rhs_buffer + at * RHS_PITCH + (col + j * 16u) / 4u], RHS_PITCH);
        } else {
          b[j] = coopLoad<coop_mat16x16<f16, B>>(&rhs_tile[rhs_buffer + (col + j * 16u) * RHS_PITCH + at / 4u], RHS_PITCH);
        }
      }
      for (var i = 0u; i < ROWS; i++) {
        for (var j = 0u; j < COLS; j++) {
          sums[i * COLS + j] = coopMultiplyAdd(a[i], b[j], sums[i * COLS + j]);
        }
      }
    }
    if (BUFFERS == 1u) {
      workgroupBarrier();
    } else {
      lhs_buffer = TILE_M * PITCH - lhs_buffer;
      rhs_buffer = RHS_TILE - rhs_buffer;
    }
  }

  let slots = subgroup * 16u * SLOT_PITCH;
  let pitch = SLOT_PITCH;
  for (var i = 0u; i < ROWS; i++) {
    for (var j = 0u; j < COLS; j++) {
      // naga 30 does not emit a store's operands by itself: they must have names.
      let whole = sums[i * COLS + j];
      let slot = &fragments[slots + j % SLOTS * 16u];
      coopStoreT(whole, slot, pitch);
      if (j % SLOTS == SLOTS - 1u) {
        workgroupBarrier();
        put_slots(part, rows, m0 + row + i * 16u, n0 + col + (j - j % SLOTS) * 16u, slots, lane);
        workgroupBarrier();
      }
    }
  }
}
