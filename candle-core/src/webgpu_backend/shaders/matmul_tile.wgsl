// A tile of TILE x TILE of dst in a workgroup of 256 invocations, each with SIZE x SIZE of it in registers. Both operands go
// through workgroup memory, DEPTH deep, k by k; a place is swizzled by its k, so that neither the loads along k nor the
// reads along the tile meet in one bank. Lines in capitals are written by Rust, unrolled.

const_assert TILE == 16u * SIZE;
const QUADS = TILE / 4u;
const_assert QUADS * DEPTH / 4u == 128u;

var<workgroup> lhs_tile: array<vec4<f32>, DEPTH * QUADS>;
var<workgroup> rhs_tile: array<vec4<f32>, DEPTH * QUADS>;

// Which 4 x 4 block of a tile invocation `i` of 128 loads: neighbours follow the contiguous direction.
fn block(i: u32, along_outer: bool) -> vec2<u32> {
  if (along_outer) {
    return vec2<u32>(i % QUADS, i / QUADS);
  }
  return vec2<u32>(i / (DEPTH / 4u), i % (DEPTH / 4u));
}

fn put(batch: u32, row: u32, col: u32, values: vec4<f32>) {
  if (row >= p.m) {
    return;
  }
  var v = values * lhs_scale(row);
  for (var i = 0u; i < 4u; i += DST_LANES) {
    if (col + i < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = v[i + lane];
      }
      dst_put(((batch * p.m + row) * p.dst_row + p.dst_first + col + i) / DST_LANES, lanes);
    }
  }
}

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  // Tiles down the rows come first: they read the same columns of rhs, while those are in the cache.
  let tiles_m = (p.m + TILE - 1u) / TILE;
  let tiles_n = (p.n + TILE - 1u) / TILE;
  let tile = flat(workgroup, workgroups, 0u, 1u);
  let batch = tile / (tiles_m * tiles_n);
  if (batch >= p.batch) {
    return;
  }
  let m0 = tile % tiles_m * TILE;
  let n0 = tile / tiles_m % tiles_n * TILE;
  let lhs_base = lhs_offset(batch);
  let rhs_base = rhs_offset(batch);
  let row = local / 16u;
  let col = local % 16u;
  DECLARE;
  for (var k = 0u; k < p.k; k += DEPTH) {
    workgroupBarrier();
    if (local < 128u) {
      let at = block(local, LHS_OUTER);
      let values = lhs_block(lhs_base, m0 + at.x * 4u, k + at.y * 4u, p.m);
      for (var j = 0u; j < 4u; j++) {
        lhs_tile[(at.y * 4u + j) * QUADS + (at.x ^ (at.y % 8u))] = values[j];
      }
    } else {
      let at = block(local - 128u, RHS_OUTER);
      let values = rhs_block(rhs_base, n0 + at.x * 4u, k + at.y * 4u, p.n);
      for (var j = 0u; j < 4u; j++) {
        rhs_tile[(at.y * 4u + j) * QUADS + (at.x ^ (at.y % 8u))] = values[j];
      }
    }
    workgroupBarrier();
    for (var quad = 0u; quad < DEPTH / 4u; quad++) {
      let swizzle = quad % 8u;
      for (var j = 0u; j < 4u; j++) {
        let lhs_row = (quad * 4u + j) * QUADS + (row ^ swizzle);
        let rhs_row = (quad * 4u + j) * QUADS + (col ^ swizzle);
        PRODUCT;
      }
    }
  }
  STORE;
}
