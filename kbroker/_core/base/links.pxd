"""Lists whose links are fields of their elements: no memory of their own, and an element may be in several lists.

These are macros. Each argument is named as in `queue_push(conn.slots, conn.slots_tail, slot, slot.next)`: the list's
ends, the element, and the element's link. The ends and links are assigned to. Whoever owns a list takes its first
element by `first = element.next`.

A queue has a first and a last element, and links to the next one. It is empty when `first` is NULL; `last` means
nothing then. A chain has a first element, and links to the next and the previous one, so any element leaves it at once.
"""

cdef extern from * nogil:
    """
    #include <stddef.h>
    /* The link of `other`, which is the same field as `link` of `element`. */
    #define LINK_OF(other, element, link) \\
        (*(__typeof__(element) *)((char *)(other) + ((char *)&(link) - (char *)(element))))
    #define QUEUE_PUSH(first, last, element, link) do { \\
        (link) = NULL; \\
        if ((first) == NULL) (first) = (element); \\
        else LINK_OF(last, element, link) = (element); \\
        (last) = (element); \\
    } while (0)
    #define QUEUE_REMOVE(first, last, element, link) do { \\
        __typeof__(element) links_before = NULL; \\
        __typeof__(element) links_at = (first); \\
        while (links_at != NULL && links_at != (element)) { \\
            links_before = links_at; \\
            links_at = LINK_OF(links_at, element, link); \\
        } \\
        if (links_at == NULL) break; \\
        if (links_before == NULL) (first) = (link); \\
        else LINK_OF(links_before, element, link) = (link); \\
        if ((last) == links_at) (last) = links_before; \\
    } while (0)
    #define CHAIN_PUSH(first, element, next_link, previous_link) do { \\
        (previous_link) = NULL; \\
        (next_link) = (first); \\
        if ((first) != NULL) LINK_OF(first, element, previous_link) = (element); \\
        (first) = (element); \\
    } while (0)
    #define CHAIN_REMOVE(first, element, next_link, previous_link) do { \\
        if ((previous_link) != NULL) LINK_OF(previous_link, element, next_link) = (next_link); \\
        else (first) = (next_link); \\
        if ((next_link) != NULL) LINK_OF(next_link, element, previous_link) = (previous_link); \\
    } while (0)
    """
    # Put an element at the end of a queue.
    void queue_push "QUEUE_PUSH" (...)         # first, last, element, its link to the next one
    # Take an element out of a queue, wherever it is; nothing happens if it is not in the queue. Looks at all before it.
    void queue_remove "QUEUE_REMOVE" (...)     # first, last, element, its link to the next one
    # Put an element at the front of a chain.
    void chain_push "CHAIN_PUSH" (...)         # first, element, its links to the next and to the previous one
    # Take an element out of a chain that it is in.
    void chain_remove "CHAIN_REMOVE" (...)     # first, element, its links to the next and to the previous one
