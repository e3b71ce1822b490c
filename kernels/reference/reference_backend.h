// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define DEEPPCR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"

namespace deeppcr::reference {

// A backend of plain double loops: slow, obvious, and the judge of the others. Requests and answers
// are float at its edges; every state in between is double.
std::unique_ptr<Backend> NewReferenceBackend();

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
