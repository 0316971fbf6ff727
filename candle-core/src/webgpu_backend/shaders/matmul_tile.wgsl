// A tile of TILE_M x TILE_N of dst in a workgroup of TY x TX invocations, each with SIZE x SIZE of it in registers. Both operands are
// staged through workgroup memory, DEPTH deep, k by k; an index is swizzled by its k, so that neither the loads along k nor the reads along
// the tile have bank conflicts. Parts of `k` have separate results. Loops to QUADS and FOUR are unrolled (unroll.rs): an invocation's share
// of the result is QUADS quads of rows by QUADS quads of columns in variables.

const WG = TX * TY;
const TILE_M = TY * SIZE;
const TILE_N = TX * SIZE;
const LHS_QUADS = TILE_M / 4u;
const RHS_QUADS = TILE_N / 4u;
const LHS_BLOCKS = LHS_QUADS * DEPTH / 4u;
const RHS_BLOCKS = RHS_QUADS * DEPTH / 4u;
// A tile of few rows has fewer indexes to swizzle over.
const LHS_SWIZZLE = min(LHS_QUADS, 8u);
const_assert LHS_QUADS % 4u == 0u && RHS_QUADS % 8u == 0u && DEPTH % 4u == 0u;

var<workgroup> lhs_tile: array<vec4<f32>, DEPTH * LHS_QUADS>;
var<workgroup> rhs_tile: array<vec4<f32>, DEPTH * RHS_QUADS>;

// The 4 x 4 block of a tile with number `i`: neighbours follow the contiguous direction.
fn block(i: u32, quads: u32, along_outer: bool) -> vec2<u32> {
  if (along_outer) {
    return vec2<u32>(i % quads, i / quads);
  }
  return vec2<u32>(i / (DEPTH / 4u), i % (DEPTH / 4u));
}

fn put(part: u32, row: u32, col: u32, values: vec4<f32>) {
  if (row >= p.m) {
    return;
  }
  let dst_row = part * p.m + row;
  var v = values;
  for (var i = 0u; i < 4u; i += DST_LANES) {
    if (col + i < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = finish(dst_row, col + i + lane, scaled(v[i + lane], row, col + i + lane));
      }
      dst_put(dst_place(part, row, col + i) / DST_LANES, lanes);
    }
  }
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  // Tiles down the rows come first: they read the same columns of rhs, while those are in the cache.
  let tiles_m = (p.m + TILE_M - 1u) / TILE_M;
  let tiles_n = (p.n + TILE_N - 1u) / TILE_N;
  let tile = flat(workgroup, workgroups, 0u, 1u);
  let part = tile / (tiles_m * tiles_n);
  if (part >= p.batch * p.splits) {
    return;
  }
  let batch = part % p.batch;
  let k_first = part / p.batch * p.chunk;
  let k_last = min(k_first + p.chunk, p.k);
  let m0 = tile % tiles_m * TILE_M;
  let n0 = tile / tiles_m % tiles_n * TILE_N;
  let lhs_base = lhs_offset(batch);
  let rhs_base = rhs_offset(batch);
  let row = local / TX;
  let col = local % TX;
  var sums: array<vec4<f32>, QUADS * FOUR * QUADS>;
  for (var k = k_first; k < k_last; k += DEPTH) {
    workgroupBarrier();
    for (var i = local; i < LHS_BLOCKS + RHS_BLOCKS; i += WG) {
      if (i < LHS_BLOCKS) {
        let at = block(i, LHS_QUADS, LHS_OUTER);
        let values = lhs_block(lhs_base, m0 + at.x * 4u, k + at.y * 4u, p.m);
        for (var j = 0u; j < 4u; j++) {
          lhs_tile[(at.y * 4u + j) * LHS_QUADS + (at.x ^ (at.y % LHS_SWIZZLE))] = values[j];
        }
      } else {
        let at = block(i - LHS_BLOCKS, RHS_QUADS, RHS_OUTER);
        let values = rhs_block(rhs_base, n0 + at.x * 4u, k + at.y * 4u, p.n);
        for (var j = 0u; j < 4u; j++) {
          rhs_tile[(at.y * 4u + j) * RHS_QUADS + (at.x ^ (at.y % 8u))] = values[j];
        }
      }
    }
    workgroupBarrier();
    for (var quad = 0u; quad < DEPTH / 4u; quad++) {
      for (var j = 0u; j < 4u; j++) {
        let lhs_row = (quad * 4u + j) * LHS_QUADS + (row ^ (quad % LHS_SWIZZLE));
        let rhs_row = (quad * 4u + j) * RHS_QUADS + (col ^ (quad % 8u));
        var a: array<vec4<f32>, QUADS>;
        var b: array<vec4<f32>, QUADS>;
        for (var q = 0u; q < QUADS; q++) {
          a[q] = lhs_tile[lhs_row + q * TY];
          b[q] = rhs_tile[rhs_row + q * TX];
        }
        for (var down = 0u; down < QUADS; down++) {
          for (var lane = 0u; lane < FOUR; lane++) {
            for (var q = 0u; q < QUADS; q++) {
              sums[(down * FOUR + lane) * QUADS + q] = fma(vec4<f32>(a[down][lane]), b[q], sums[(down * FOUR + lane) * QUADS + q]);
            }
          }
        }
      }
    }
  }
  for (var down = 0u; down < QUADS; down++) {
    for (var lane = 0u; lane < FOUR; lane++) {
      for (var q = 0u; q < QUADS; q++) {
        put(part, m0 + (row + down * TY) * 4u + lane, n0 + (col + q * TX) * 4u, sums[(down * FOUR + lane) * QUADS + q]);
      }
    }
  }
}
