// A tile of 128 x 128 of dst in eight subgroups of 32, four down and two across, each with 2 x 4 cooperative matrices of
// 16 x 16. The operands go through workgroup memory, DEPTH deep; rows are padded against bank conflicts. Lines in capitals
// are written by Rust, unrolled.

const GROUPS = DEPTH / 4u;
const PITCH = GROUPS + 2u;

var<workgroup> lhs_tile: array<vec4<f16>, 128u * PITCH>;
var<workgroup> rhs_tile: array<vec4<f16>, 128u * PITCH>;
var<workgroup> fragments: array<f32, 8u * 256u>;

// Writes one fragment from workgroup memory; its rows and columns may end beyond dst's.
fn put_fragment(batch: u32, rows: u32, row: u32, col: u32, subgroup: u32, lane: u32) {
  for (var word = lane; word < 256u / DST_LANES; word += 32u) {
    let r = row + word * DST_LANES / 16u;
    let c = col + word * DST_LANES % 16u;
    if (r < rows && c < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var i = 0u; i < DST_LANES; i++) {
        lanes[i] = fragments[subgroup * 256u + word * DST_LANES + i];
      }
      dst_put(((batch * p.m + r) * p.n + c) / DST_LANES, lanes);
    }
  }
}

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  let tiles_m = (p.m + 127u) / 128u;
  let tiles_n = (p.n + 127u) / 128u;
  let tile = flat(workgroup, workgroups, 0u, 1u);
  // Cooperative matrices need uniform control flow, which naga does not see past a return: workgroups beyond the last tile
  // do its work again, without rows to write.
  let batch = min(tile / (tiles_m * tiles_n), p.batch - 1u);
  let rows = select(0u, p.m, tile < tiles_m * tiles_n * p.batch);
  let m0 = tile % tiles_m * 128u;
  let n0 = tile / tiles_m % tiles_n * 128u;
  let lhs_base = lhs_offset(batch);
  let rhs_base = rhs_offset(batch);
  let row = subgroup / 2u * 32u;
  let col = subgroup % 2u * 64u;
  DECLARE;
  for (var k = 0u; k < p.k; k += DEPTH) {
    for (var i = local; i < 128u * GROUPS; i += 256u) {
      let r = i / GROUPS;
      let c = i % GROUPS;
      var lhs_value = vec4<f16>();
      if (m0 + r < p.m) {
        lhs_value = lhs[(lhs_base + (m0 + r) * p.lhs_row + k) / 4u + c];
      }
      var rhs_value = vec4<f16>();
      if (n0 + r < p.n) {
        rhs_value = rhs[(rhs_base + (n0 + r) * p.rhs_row + k) / 4u + c];
      }
      lhs_tile[r * PITCH + c] = lhs_value;
      rhs_tile[r * PITCH + c] = rhs_value;
    }
    workgroupBarrier();
    for (var at = 0u; at < DEPTH; at += 16u) {
      PRODUCT;
    }
    workgroupBarrier();
  }
  let slot = &fragments[subgroup * 256u];
  let pitch = 16u;
  STORE;
}
