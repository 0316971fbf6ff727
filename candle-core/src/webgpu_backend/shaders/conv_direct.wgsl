// dst[batch, out, oy, ox] = sum over a group's channels and the kernel of src * kernel. An invocation computes STRIP neighbours of a row,
// for which it reads each row of the input once if windows are as far apart as the kernel's elements (SLIDE). A workgroup's invocations are
// divided among planes of dst, p.lanes each; the workgroup keeps the part of the kernel that it needs (STAGED).

// The kernel's sizes: constants that this is compiled for, or parameters.
fn k_h() -> u32 {
  if (KERNEL_H > 0u) {
    return KERNEL_H;
  }
  return p.k_h;
}

fn k_w() -> u32 {
  if (KERNEL_W > 0u) {
    return KERNEL_W;
  }
  return p.k_w;
}

var<workgroup> staged: array<src_t, STAGED_LEN>;

// The offset of the part of the kernel that computes a plane.
fn kernel_of(plane: u32) -> u32 {
  let out = plane % (p.groups * p.c_out);
  return p.kernel_offset + out / p.c_out * p.kernel_group + out % p.c_out * p.kernel_out;
}

fn weight(row: u32, kx: u32) -> src_t {
  if (STAGED) {
    return staged[row + kx];
  }
  return kernel_at(row + kx * p.kernel_col);
}

// The index in the input that element `tap` of the kernel reads for element `out` of dst; outside of the input it is a large number.
fn place(out: u32, tap: u32, start: u32, stride: u32, dilation: u32) -> u32 {
  if (TRANSPOSED) {
    let at = out + start - tap * dilation;
    return select(0xffffffffu, at / stride, at % stride == 0u);
  }
  return out * stride + tap * dilation + start;
}

fn value(row: u32, x: u32) -> src_t {
  if (x >= p.i_w) {
    return src_t();
  }
  return src_at(row + x * p.src_col);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let number = flat(workgroup, workgroups, 0u, 1u);
  let together = WG / p.lanes;
  let first_plane = number / p.segments * together;
  let taps = p.c_in * k_h() * k_w();
  if (STAGED) {
    for (var i = local; i < together * taps; i += WG) {
      let plane = first_plane + i / taps;
      if (plane < p.planes) {
        var rest = i % taps;
        let kx = rest % k_w();
        rest /= k_w();
        let at = rest / k_h() * p.kernel_channel + rest % k_h() * p.kernel_row + kx * p.kernel_col;
        staged[i] = kernel_at(kernel_of(plane) + at);
      }
    }
    workgroupBarrier();
  }
  let plane = first_plane + local / p.lanes;
  let strip = number % p.segments * p.lanes + local % p.lanes;
  let oy = strip / p.strips;
  let ox = strip % p.strips * STRIP;
  if (plane >= p.planes || oy >= p.o_h) {
    return;
  }
  let channels = p.groups * p.c_out;
  let image = p.src_offset + plane / channels * p.src_batch + plane % channels / p.c_out * p.src_group;
  let kernel_first = kernel_of(plane);
  var sums: array<src_t, STRIP>;
  for (var c = 0u; c < p.c_in; c++) {
    for (var ky = 0u; ky < k_h(); ky++) {
      let y = place(oy, ky, p.start_h, p.stride_h, p.dilation_h);
      if (y >= p.i_h) {
        continue;
      }
      let row = image + c * p.src_channel + y * p.src_row;
      var weights = kernel_first + c * p.kernel_channel + ky * p.kernel_row;
      if (STAGED) {
        weights = local / p.lanes * taps + (c * k_h() + ky) * k_w();
      }
      var values: array<src_t, STRIP>;
      var x = ox * p.stride_w + p.start_w;
      if (SLIDE) {
        for (var j = 1u; j < STRIP; j++) {
          values[j] = value(row, x);
          x += p.stride_w;
        }
      }
      for (var kx = 0u; kx < k_w(); kx++) {
        let w = weight(weights, kx);
        for (var j = 0u; j < STRIP; j++) {
          if (!SLIDE) {
            values[j] = value(row, place(ox + j, kx, p.start_w, p.stride_w, p.dilation_w));
          } else if (j + 1u < STRIP) {
            // The values read by the previous tap, shifted by one element.
            values[j] = values[j + 1u];
          } else {
            values[j] = value(row, x);
            x += p.stride_w;
          }
        }
        for (var j = 0u; j < STRIP; j++) {
          sums[j] = multiply_add(w, values[j], sums[j]);
        }
      }
    }
  }
  let to = (plane * p.o_h + oy) * p.o_w + ox;
  for (var first = 0u; first < STRIP; first += DST_LANES) {
    if (ox + first < p.o_w) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = sums[first + lane];
      }
      dst_put((to + first) / DST_LANES, lanes);
    }
  }
}
