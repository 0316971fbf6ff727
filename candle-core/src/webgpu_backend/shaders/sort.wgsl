// Sorts a tile of a row in workgroup memory. LOAD: the tile comes from src; otherwise from keys and ids. A row here may be a window of one,
// from index p.first on. All runs of first_run, twice that, ... last_run elements are merged, each from its step of half a tile on: longer
// steps were done before. A run is ascending if its number is even.

const_assert 0u == (TILE & (TILE - 1u));

var<workgroup> tile_keys: array<key_t, TILE>;
var<workgroup> tile_ids: array<u32, TILE>;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let number = workgroup.y * workgroups.x + workgroup.x;
  if (number >= p.tiles) {
    return;
  }
  let start = number * TILE;
  // The tile's index in its row.
  let column = start % p.padded;
  for (var i = local; i < TILE; i += WG) {
    if (LOAD) {
      let place = column + i;
      // The row's padding comes after all its elements, by its index.
      tile_keys[i] = LAST;
      if (place < p.n) {
        tile_keys[i] = key_at(start / p.padded * p.n + place);
      }
      tile_ids[i] = p.first + place;
    } else {
      tile_keys[i] = keys[start + i];
      tile_ids[i] = ids[start + i];
    }
  }
  workgroupBarrier();
  for (var run = p.first_run; run <= p.last_run; run <<= 1u) {
    for (var step = min(run, TILE) >> 1u; step > 0u; step >>= 1u) {
      for (var pair = local; pair < TILE / 2u; pair += WG) {
        let low = (pair / step) * step * 2u + pair % step;
        let high = low + step;
        let a = tile_keys[low];
        let b = tile_keys[high];
        let a_id = tile_ids[low];
        let b_id = tile_ids[high];
        let after = key_less(b, a) || (!key_less(a, b) && b_id < a_id);
        if (after == (((p.first + column + low) & run) == 0u)) {
          tile_keys[low] = b;
          tile_keys[high] = a;
          tile_ids[low] = b_id;
          tile_ids[high] = a_id;
        }
      }
      workgroupBarrier();
    }
  }
  for (var i = local; i < TILE; i += WG) {
    keys[start + i] = tile_keys[i];
    ids[start + i] = tile_ids[i];
  }
}
