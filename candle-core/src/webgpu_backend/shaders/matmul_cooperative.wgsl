// A tile of TILE_M x TILE_N of dst in subgroups of 32, DOWN by ACROSS of them, each with 2 x 4 cooperative matrices of
// 16 x 16. The operands go through workgroup memory, DEPTH deep; rows are padded against bank conflicts. While a step is
// multiplied, the next one is on its way to registers; with two BUFFERS it is stored while others still read the last one.
// Parts of `k` give results of their own. Lines in capitals are written by Rust, unrolled.

const TILE_M = DOWN * 32u;
const TILE_N = ACROSS * 64u;
const WG = DOWN * ACROSS * 32u;
const GROUPS = DEPTH / 4u;
const PITCH = GROUPS + 2u;
const_assert TILE_M * GROUPS % WG == 0u && TILE_N * GROUPS % WG == 0u;

var<workgroup> lhs_tile: array<vec4<f16>, BUFFERS * TILE_M * PITCH>;
var<workgroup> rhs_tile: array<vec4<f16>, BUFFERS * TILE_N * PITCH>;
var<workgroup> fragments: array<f32, DOWN * ACROSS * 256u>;

// Writes one fragment from workgroup memory; its rows and columns may end beyond dst's.
fn put_fragment(part: u32, rows: u32, row: u32, col: u32, subgroup: u32, lane: u32) {
  for (var word = lane; word < 256u / DST_LANES; word += 32u) {
    let r = row + word * DST_LANES / 16u;
    let c = col + word * DST_LANES % 16u;
    if (r < rows && c < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var i = 0u; i < DST_LANES; i++) {
        lanes[i] = finish(part * p.m + r, c + i, fragments[subgroup * 256u + word * DST_LANES + i] * lhs_scale(r));
      }
      dst_put(((part * p.m + r) * p.dst_row + p.dst_first + c) / DST_LANES, lanes);
    }
  }
}

// Four elements of a row of an operand, zeros beyond its last row.
fn lhs_group(base: u32, row: u32, k: u32) -> vec4<f16> {
  var value = vec4<f16>();
  if (row < p.m && k < p.k) {
    value = lhs[(base + row * p.lhs_row + k) / 4u];
  }
  return value;
}

fn rhs_group(base: u32, row: u32, k: u32) -> vec4<f16> {
  var value = vec4<f16>();
  if (row < p.n && k < p.k) {
    value = rhs[(base + row * p.rhs_row + k) / 4u];
  }
  return value;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
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
  let lhs_base = lhs_offset(batch);
  let rhs_base = rhs_offset(batch);
  let row = subgroup / ACROSS * 32u;
  let col = subgroup % ACROSS * 64u;
  let r = local / GROUPS;
  let c = local % GROUPS;
  DECLARE;
  var lhs_buffer = 0u;
  var rhs_buffer = 0u;
  FETCH(k_first);
  for (var k = k_first; k < k_last; k += DEPTH) {
    STAGE;
    workgroupBarrier();
    FETCH(k + DEPTH);
    for (var at = 0u; at < DEPTH; at += 16u) {
      PRODUCT;
    }
    if (BUFFERS == 1u) {
      workgroupBarrier();
    } else {
      lhs_buffer = TILE_M * PITCH - lhs_buffer;
      rhs_buffer = TILE_N * PITCH - rhs_buffer;
    }
  }
  let slot = &fragments[subgroup * 256u];
  let pitch = 16u;
  STORE;
}
