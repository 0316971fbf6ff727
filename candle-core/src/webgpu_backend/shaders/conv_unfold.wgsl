// The windows of images as rows: row n is a position of the result, counted over all images, and its element k an element of the kernel
// (channel, ky, kx). Elements from p.k on, up to the row's length, are zeros. Elements are halves, which are copied as bits.
//
// A workgroup computes eight elements of each of GROUPS groups for COLS positions. Adjacent invocations read adjacent positions, which are
// adjacent in a row of an image; after a transposition in workgroup memory they write adjacent elements of a row. Loops to LOADS and EIGHT
// are unrolled (unroll.rs), so that all loads are in flight; K_H and K_W become the kernel's size, a constant if it is small.

const GROUPS = 8u;
const PITCH = GROUPS + 1u;
const_assert LOADS * WG == COLS * GROUPS && EIGHT == 8u;

var<workgroup> rows: array<vec4<u32>, COLS * PITCH>;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let bands = (p.groups + GROUPS - 1u) / GROUPS;
  let at = flat(workgroup, workgroups, 0u, 1u);
  let first_group = at % bands * GROUPS;
  let first_row = at / bands * COLS;

  let own = local % COLS;
  // Past the last row, that row is read again and not stored.
  let n = p.first + min(first_row + own, p.rows - 1u);
  let position = n % p.positions;
  let y = position / p.o_w * p.stride_h + p.start_h;
  let x = position % p.o_w * p.stride_w + p.start_w;
  // It wraps where a window begins before the image; positions within the image are right.
  let window = p.src_offset + n / p.positions * p.src_batch + y * p.src_row + x * p.src_col;
  for (var load = 0u; load < LOADS; load++) {
    let group = local / COLS + load * (WG / COLS);
    let k = (first_group + group) * 8u;
    var kx = k % K_W;
    let of_channels = k / K_W;
    var ky = of_channels % K_H;
    var channel = of_channels / K_H * p.src_channel;
    var halves: array<u32, EIGHT>;
    for (var j = 0u; j < EIGHT; j++) {
      let dy = ky * p.dilation_h;
      let dx = kx * p.dilation_w;
      let inside = k + j < p.k && (INSIDE || (y + dy < p.i_h && x + dx < p.i_w));
      let i = select(p.src_offset, window + channel + dy * p.src_row + dx * p.src_col, inside);
      halves[j] = select(0u, (src[i / 2u] >> (i % 2u * 16u)) & 0xffffu, inside);
      kx++;
      if (kx == K_W) {
        kx = 0u;
        ky++;
        if (ky == K_H) {
          ky = 0u;
          channel += p.src_channel;
        }
      }
    }
    rows[own * PITCH + group] = vec4<u32>(
      halves[0] | (halves[1] << 16u),
      halves[2] | (halves[3] << 16u),
      halves[4] | (halves[5] << 16u),
      halves[6] | (halves[7] << 16u),
    );
  }
  workgroupBarrier();
  for (var i = local; i < COLS * GROUPS; i += WG) {
    let row = i / GROUPS;
    let group = i % GROUPS;
    if (first_row + row < p.rows && first_group + group < p.groups) {
      dst[(first_row + row) * p.groups + first_group + group] = rows[row * PITCH + group];
    }
  }
}
